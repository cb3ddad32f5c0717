"""The chart, its rendered objects, and Helm to render more objects, if Helm is installed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts/topowise"
HELM = REPOSITORY / "hack/helm"
NAMESPACE = "topowise-system"
RECIPES = ["", *sorted(path.stem for path in (CHART / "recipes").glob("*.yaml"))]

Document = dict[str, Any]
Render = Callable[..., "Rendered"]


class Rendered(list[Document]):
    """Objects, found by kind and name."""

    def named(self, kind: str, name: str) -> Document:
        (match,) = (item for item in self if item["kind"] == kind and item["metadata"]["name"] == name)
        return match

    def kinds(self, kind: str) -> list[Document]:
        return [item for item in self if item["kind"] == kind]

    def pod(self, kind: str, name: str) -> Document:
        """The spec of a workload's pods."""
        return self.named(kind, name)["spec"]["template"]["spec"]


def _has_helm() -> bool:
    return subprocess.run([HELM, "--find"], check=False, capture_output=True).returncode == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without Helm a single test reports it, instead of every test that needs Helm."""
    wanting = [test for test in items if "helm" in getattr(test, "fixturenames", ())]
    if len(wanting) > 1 and not _has_helm():
        config.hook.pytest_deselected(items=wanting[1:])
        gone = set(wanting[1:])
        items[:] = [test for test in items if test not in gone]


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
    return Rendered(item for file in files for item in yaml.safe_load_all((folder / file).read_text()))


@pytest.fixture(scope="session")
def helm(pytestconfig: pytest.Config) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs Helm; the caller looks at the status. What needs no cluster runs once for a state of the chart."""
    if not _has_helm():
        pytest.skip("no helm: set $HELM, or run hack/helm --fetch")
    # The developer's own kubeconfig must not be used. Helm ends before a collection of garbage would pay.
    environment = {**os.environ, "KUBECONFIG": os.devnull, "GOGC": "off", "GOMAXPROCS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([HELM, *arguments], check=False, capture_output=True, text=True, env=environment)

    cache = getattr(pytestconfig, "cache", None)
    if cache is None:
        return run
    folder = cache.mkdir("helm") / _state_of_the_chart(run("version").stdout)
    for outdated in folder.parent.iterdir():
        if outdated != folder:
            shutil.rmtree(outdated, ignore_errors=True)
    folder.mkdir(exist_ok=True)

    def run_once(*arguments: str) -> subprocess.CompletedProcess[str]:
        if arguments[0] != "template" and "--dry-run=client" not in arguments:
            return run(*arguments)
        kept = folder / hashlib.sha256(repr(arguments).encode()).hexdigest()
        if not kept.exists():
            done = run(*arguments)
            # Other workers see the whole of it or nothing.
            partial = kept.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps((done.returncode, done.stdout, done.stderr)))
            partial.rename(kept)
        return subprocess.CompletedProcess(arguments, *json.loads(kept.read_text()))

    return run_once


def _state_of_the_chart(helm_version: str) -> str:
    state = hashlib.sha256(helm_version.encode())
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        state.update(f"{path.relative_to(CHART)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()


@pytest.fixture(scope="session")
def dashboard(chart: Path) -> Document:
    return json.loads((chart / "dashboards/topowise.json").read_text())


@pytest.fixture(scope="session")
def render(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """The objects of a values set: a recipe's name or none, and settings as --set takes them.

    Equal sets are rendered once, so no test changes an object.
    """

    @cache
    def objects(recipe: str = "", *settings: str, kube_version: str = "1.36.2", api: str = "") -> Rendered:
        arguments = ["template", "topowise", str(CHART), f"--namespace={NAMESPACE}", f"--kube-version={kube_version}"]
        arguments += [f"--values={CHART}/recipes/{recipe}.yaml"] if recipe else []
        arguments += [f"--api-versions={api}"] if api else []
        done = helm(*arguments, *(f"--set={setting}" for setting in settings))
        if done.returncode:
            raise ValueError(done.stderr)
        return Rendered(_documents(done.stdout))

    return objects


def _documents(text: str) -> Iterator[Document]:
    return (item for item in yaml.load_all(text, _Strict) if item)


class _Strict(yaml.CSafeLoader):
    """Refuses what is there twice, as Kubernetes does where it is asked to look."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"{[key for key in keys if keys.count(key) > 1]} twice, {node.start_mark}"
        return super().construct_mapping(node, deep)
