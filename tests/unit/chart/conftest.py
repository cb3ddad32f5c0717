"""The chart, its rendered objects, and a Helm to render more of them with, where there is one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
CHART = REPOSITORY / "charts/topowise"
HELM = REPOSITORY / "hack/helm"
NAMESPACE = "topowise-system"

Document = dict[str, Any]
Render = Callable[..., "Rendered"]


class Rendered(list[Document]):
    """Objects, found by kind and name."""

    def named(self, kind: str, name: str) -> Document:
        (found,) = (one for one in self if one["kind"] == kind and one["metadata"]["name"] == name)
        return found

    def kinds(self, kind: str) -> list[Document]:
        return [one for one in self if one["kind"] == kind]

    def pod(self, kind: str, name: str) -> Document:
        """The spec of a workload's pods."""
        return self.named(kind, name)["spec"]["template"]["spec"]


def _has_helm() -> bool:
    return subprocess.run([HELM, "--find"], check=False, capture_output=True).returncode == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without Helm one test says so, rather than each that would have used it."""
    here = Path(__file__).parent
    wanting = [one for one in items if one.path.parent == here and "helm" in getattr(one, "fixturenames", ())]
    if len(wanting) > 1 and not _has_helm():
        config.hook.pytest_deselected(items=wanting[1:])
        gone = set(wanting[1:])
        items[:] = [one for one in items if one not in gone]


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def chart() -> Path:
    return CHART


@pytest.fixture(scope="session")
def values(chart: Path) -> Document:
    return yaml.safe_load((chart / "values.yaml").read_text())


@pytest.fixture(scope="session")
def recipes(chart: Path) -> dict[str, Document]:
    """Values of each recipe, by name."""
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted((chart / "recipes").glob("*.yaml"))}


@pytest.fixture(scope="session")
def default() -> Rendered:
    """What the chart makes of its own values, as it is committed for kustomize."""
    folder = REPOSITORY / "charts/kustomize/default"
    files = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return Rendered(one for file in files for one in yaml.safe_load_all((folder / file).read_text()))


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Helm; the caller looks at the status."""
    if not _has_helm():
        pytest.skip("no helm: set $HELM, or run hack/helm --fetch")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        # Whoever runs the tests may have a cluster; it is none of ours.
        environment = {**os.environ, "KUBECONFIG": os.devnull}
        return subprocess.run([HELM, *arguments], check=False, capture_output=True, text=True, env=environment)

    return run


@pytest.fixture(scope="session")
def render(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """The objects of a values set: a recipe's name or none, and settings as --set takes them."""

    def made(recipe: str = "", *settings: str, kube_version: str = "1.36.2") -> Rendered:
        arguments = ["template", "topowise", str(CHART), f"--namespace={NAMESPACE}", f"--kube-version={kube_version}"]
        arguments += [f"--values={CHART}/recipes/{recipe}.yaml"] if recipe else []
        done = helm(*arguments, *(f"--set={one}" for one in settings))
        if done.returncode:
            raise ValueError(done.stderr)
        return Rendered(_documents(done.stdout))

    return made


def _documents(text: str) -> Iterator[Document]:
    return (one for one in yaml.load_all(text, _Strict) if one)


class _Strict(yaml.SafeLoader):
    """Refuses what is there twice, as Kubernetes does where it is asked to look."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"{[one for one in keys if keys.count(one) > 1]} twice, {node.start_mark}"
        return super().construct_mapping(node, deep)
