"""`-o jsonpath=` and `-o custom-columns=` print what kubectl prints by the same template."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from topowise.errors import SourceError
from topowise_scheduler.presentation.kubectl import jsonpath

from .conftest import Ask, Save

CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "a",
    "preferences": {},
    "clusters": [{"name": f"c{at}", "cluster": {"server": f"https://host-{at}"}} for at in range(3)],
    "users": [{"name": "u", "user": {"username": "x"}}],
    "contexts": [
        {"name": name, "context": {"cluster": f"c{at}", "user": "u", "namespace": f"n{at}"}}
        for at, name in enumerate("ab")
    ],
}
TEMPLATES = [
    "text",
    "{.kind}",
    "{$.kind}{@.kind}",
    "{ .kind }",
    "{.current-context}",
    "{['kind']}",
    "{.clusters[*].name}",
    "{.clusters[0].name}{.clusters[-1].name}",
    "{.clusters[0:2].name}",
    "{.clusters[0:3:2].name}",
    "{.clusters[:2].name}",
    "{.clusters[1:].name}",
    "{.clusters[-2:].name}",
    "{.clusters[0,2].name}",
    "{.clusters[0]['name','cluster.server']}",
    "{.clusters[*]['name']}",
    "{.clusters[0].cluster}",
    "{.contexts[0].context}",
    '{range .clusters[*]}{.name}{"\\t"}{.cluster.server}{"\\n"}{end}',
    "{range .clusters[*]}{.name} at {.cluster.server}, {end}done",
    "{range .contexts[*]}{.name}{range .context}<{.cluster}>{end}{end}",
    '{.contexts[?(@.name=="b")].context.namespace}',
    '{.contexts[?(@.name!="b")].name}',
    '{.contexts[?(@.name>"a")].name}',
    "{.contexts[?(@.context.namespace)].name}",
    "{..server}",
    "{..context.namespace}",
    "{.nothing.below}",
    "{range .nothing[*]}x{end}",
    '{"quoted {braces}"}',
    "{.users[0].user.*}",
    "{true}",
    "{1}",
]
INVALID = ["{", "{end}", "{.clusters[}", "{.clusters[x]}", "{fields}", "{.clusters[5].name}"]


@pytest.fixture
def printed_by_kubectl(tmp_path: Path) -> PrintedByKubectl:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH")
    return PrintedByKubectl(kubectl, tmp_path / "config")


class PrintedByKubectl:
    """Prints CONFIG by a template: `kubectl config view` reads no cluster."""

    def __init__(self, kubectl: str, file: Path) -> None:
        file.write_text(yaml.safe_dump(CONFIG))
        self._words = [kubectl, "--kubeconfig", str(file), "config", "view", "--raw", "-o"]
        self.document = json.loads(self("json").stdout)

    def __call__(self, form: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._words, form], capture_output=True, text=True, check=False, timeout=60)


def test_templates_print_the_same_as_kubectl(printed_by_kubectl: PrintedByKubectl) -> None:
    for template in TEMPLATES:
        expected = printed_by_kubectl(f"jsonpath={template}")
        assert expected.returncode == 0, (template, expected.stderr)
        assert jsonpath.template(template)(printed_by_kubectl.document) == expected.stdout, template


def test_invalid_templates_are_errors_as_for_kubectl(printed_by_kubectl: PrintedByKubectl) -> None:
    for template in INVALID:
        assert printed_by_kubectl(f"jsonpath={template}").returncode, template
        with pytest.raises(SourceError, match=r"^-o jsonpath: "):
            jsonpath.template(template)(printed_by_kubectl.document)


def test_a_range_without_an_end_is_an_error() -> None:
    """kubectl prints nothing."""
    with pytest.raises(SourceError, match=r"expected \{end\} after \{range\}"):
        jsonpath.template("{range .clusters[*]}x")


@pytest.mark.parametrize(
    ("spec", "header", "cells"),
    [
        ("NAME:.name,NS:context.namespace", ["NAME", "NS"], ["a", "n0"]),
        ("NAME:{.name},X:{none}", ["NAME", "X"], ["a", "<none>"]),
        ("ALL:.context.*", ["ALL"], ["c0,u,n0"]),
    ],
)
def test_custom_columns(spec: str, header: list[str], cells: list[str]) -> None:
    names, read = jsonpath.columns(spec)
    assert names == header
    assert read(CONFIG["contexts"][0]) == cells  # type: ignore[index]


@pytest.mark.parametrize("spec", ["", "NAME", "NAME:", "NAME:.name,", "NAME:{.a}{.b}"])
def test_invalid_custom_columns_are_a_single_line(spec: str) -> None:
    with pytest.raises(SourceError, match=r"^-o custom-columns: .* is not a column, expected HEADER:"):
        jsonpath.columns(spec)


def test_every_command_prints_by_templates(ask: Ask, saved: Save) -> None:
    nodes = ("nodes", "-f", saved(), "-o")
    assert ask(*nodes, 'jsonpath={range .items[*]}{.node} {.free.cpu}{"\\n"}{end}').text.splitlines() == [
        "edge-1 11",
        "metal-a 42",
        "metal-b 42",
        "metal-c 88",
    ]
    columns = ask(*nodes, "custom-columns=NODE:.node,VF:.free.intel\\.com/e810_vf").text.splitlines()
    assert columns[:3] == ["NODE      VF", "edge-1    <none>", "metal-a   7"]
    late = ("late", "-n", "ml", "--nodes-file", saved(), "-o")
    assert ask("explain", *late, "custom-columns=POD:.pod,NODE:.node,VERDICT:.verdict").text.splitlines()[1] == (
        "ml/late   metal-b   fits"
    )
    assert ask("fits", *late, "jsonpath={.fits}").text == "2"
    assert ask("simulate", *late, "jsonpath={.pods[*].node}").text == "metal-a"
    assert ask("defrag", *late, "jsonpath={.fits}").text == "true"
    assert ask("node", "metal-a", "-f", saved(), "-o", "jsonpath={.zones[0].free.cpu}").text == "10"
    assert ask("doctor", "-f", saved(), "-o", "jsonpath={.items[0].check}").text == "reports"
