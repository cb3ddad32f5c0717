"""Objects by name and label, and files and directories, as in kubectl."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from topowise.errors import SourceError
from topowise_scheduler.kubectl import arguments, selection
from topowise_scheduler.kubectl.console import Output

from .conftest import Ask, Save, pod

LABELS: Mapping[str, str] = {"pool": "metal", "zone": "a"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True), ("pool=metal", True), ("pool==metal,zone=a", True), ("pool=metal,zone=b", False), ("gpu", False),
        ("pool!=metal", False), ("gpu!=yes", True), ("pool", True), ("!gpu", True), ("! pool", False),
        ("pool in (metal, virtual)", True), ("zone notin (a,b),pool", False), ("gpu notin (yes)", True),
        ("pool in (x),zone=a", False), ("index=x", False),
    ],
)  # fmt: skip
def test_selectors_match_as_in_kubectl(text: str, matches: bool) -> None:
    assert selection.selector(text)(LABELS) is matches


@pytest.mark.parametrize("text", ["a=b=c", "a in b", "in (a)", "=b", "a b", "!", "a,,b"])
def test_an_invalid_selector_is_a_single_line(text: str) -> None:
    with pytest.raises(SourceError, match=r"cannot be read at .*expected a selector such as a=b"):
        selection.selector(text)


def test_every_order_of_the_command_line_is_known(ask: Ask, saved: Save) -> None:
    def order(*words: str) -> list[str]:
        return ask("nodes", "-f", saved(), "-o", "name", *words).text.replace("node/", "").split()

    assert order() == order("--sort-by", "name") == ["edge-1", "metal-a", "metal-b", "metal-c"]
    assert order("--sort-by", "cpu") == ["metal-c", "metal-a", "metal-b", "edge-1"]
    assert order("--sort-by", "memory") == ["metal-c", "metal-a", "metal-b", "edge-1"]
    assert order("--sort-by", "devices") == ["metal-b", "metal-a", "edge-1", "metal-c"]
    assert order("--sort-by", "fragmentation")[0] == "edge-1"
    assert order("--sort-by", "changed") == ["metal-c", "edge-1", "metal-b", "metal-a"]
    assert set(arguments.SORTS) == {*selection.KEYS, "fragmentation"}


def test_nodes_are_picked_by_name_and_by_label(ask: Ask, saved: Save) -> None:
    assert ask("nodes", "node/metal-b", "edge-1", "-f", saved(), "-o", "name").text == "node/edge-1\nnode/metal-b\n"
    assert ask("nodes", "-l", "pool=metal", "-f", saved(), "-o", "name").text == "node/metal-a\nnode/metal-b\n"
    assert ask("nodes", "-l", "pool=none", "-f", saved()) == Output("", notes=("No nodes match.",))
    assert "NODE" not in ask("nodes", "--no-headers", "-f", saved(), "-o", "wide").text


def test_pods_and_workloads_are_selected_by_name(ask: Ask, saved: Save) -> None:
    items = json.loads(Path(saved()).read_text())["items"]
    late = next(item for item in items if item["metadata"]["name"] == "late")
    template: dict[str, Any] = {"metadata": {}, "spec": {"containers": late["spec"]["containers"]}}
    web = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 3, "template": template}}
    files = ("--nodes-file", saved(*items, web, name="with-web.json"))
    by_name, by_kind = (ask("explain", name, "-n", "ml", *files).text for name in ("late", "pod/late"))
    assert by_name == by_kind
    assert ask("explain", "deploy/web", *files).text.startswith("Pod default/web: fits ")
    assert ask("fits", "deploy/web", *files).text.startswith("default/web: ")
    assert ask("fits", "po/late", "-n", "ml", *files).text.startswith("ml/late: ")


def test_hundreds_of_nodes_are_summarised_by_default(ask: Ask, saved_many: str, tmp_path: Path) -> None:
    manifest = tmp_path / "pod.json"
    limits = {"cpu": "12", "memory": "8Gi"}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }
    manifest.write_text(json.dumps(pod))
    words = ("explain", "-f", str(manifest), "--nodes-file", saved_many)
    summed, every = ask(*words), ask(*words, "--all")
    assert len(summed.text.splitlines()) < 10
    assert len([line for line in every.text.splitlines() if line.startswith("edge-")]) == 300
    assert len([note for note in summed.notes if "'much'" in note]) == 1
    assert len(ask(*words, "--node", "edge-001").text.splitlines()) == 4


def test_a_nomination_counts_for_other_waiting_pods_but_not_for_the_pod_itself(ask: Ask, saved: Save) -> None:
    """On metal-b a NUMA node of 16 cores is free. Two pods need it; the older pod is nominated there."""
    items = [item for item in json.loads(Path(saved()).read_text())["items"] if item["metadata"]["name"] == "metal-b"]
    nominated, second = (pod(name, cpu="30", memory="4Gi", started=started) for name, started in (("a", 90), ("b", 60)))
    nominated["status"]["nominatedNodeName"] = "metal-b"
    gated = pod("ml/gated", cpu="1", memory="1Gi")
    gated["spec"]["schedulingGates"] = [{"name": "later"}]
    files = ("--nodes-file", saved(*items, second, nominated, gated, pod("ml/c", cpu="1", memory="1Gi")))
    explained = json.loads(ask("explain", *files, "-o", "json").text)
    assert [(row["pod"], row["verdict"]) for rows in explained for row in rows] == [
        ("default/a", "fits"),
        ("default/b", "not now"),
    ]
    placed = json.loads(ask("simulate", *files, "-o", "json").text)["pods"]
    assert [(row["pod"], row["node"]) for row in placed] == [("default/a", "metal-b"), ("default/b", "")]
    everywhere = json.loads(ask("explain", "-A", *files, "-o", "json").text)
    assert [row["pod"] for rows in everywhere for row in rows] == ["ml/c", "default/a", "default/b"]


@pytest.fixture
def directory(tmp_path: Path, saved: Save) -> Iterator[Path]:
    """The saved cluster in two files."""
    items = json.loads(Path(saved()).read_text())["items"]
    folder = tmp_path / "saved"
    (folder / "below").mkdir(parents=True)
    (folder / "reports.yaml").write_text(json.dumps({"items": [item for item in items if "zones" in item]}))
    (folder / "others.json").write_text(json.dumps({"items": [item for item in items if "zones" not in item]}))
    (folder / "below" / "broken.json").write_text("{[")
    (folder / "notes.txt").write_text("{[")
    yield folder


def test_directories_are_read_and_urls_are_refused(directory: Path, ask: Ask, saved: Save) -> None:
    expected = ask("nodes", "-f", saved()).text
    assert ask("nodes", "-f", str(directory)).text == expected
    # Without pods no report is known to be outdated.
    assert "stale" in expected
    assert "stale" not in ask("nodes", "-f", str(directory / "reports.yaml")).text
    with pytest.raises(
        SourceError, match=r"https://host/a\.yaml: is a URL, expected a file; download it first, or pipe"
    ):
        ask("nodes", "-f", "https://host/a.yaml")
    with pytest.raises(
        SourceError, match=r"below: is a directory without any \.json or \.yaml or \.yml, expected some"
    ):
        (directory / "below" / "broken.json").unlink()
        ask("nodes", "-f", str(directory / "below"))


def test_nodes_are_picked_by_label_for_pods_too(ask: Ask, saved: Save) -> None:
    for command in ("explain", "fits"):
        words = (command, "late", "-n", "ml", "--nodes-file", saved(), "-l", "pool=metal", "-o", "name")
        assert set(ask(*words).text.split()) <= {"node/metal-a", "node/metal-b"}
        assert json.loads(ask(*words[:-1], "json").text)
