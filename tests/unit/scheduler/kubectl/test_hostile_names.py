"""No command writes text of a cluster unescaped to a terminal, and no text adds a row.

The commands and the forms of their output come from the parser, so that a new command is walked as well. In one scene
all names are hostile and objects agree on them; in the other scene each text field is hostile in an object of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from topowise.attributes import PCI, pci_devices
from topowise.attributes.pci_devices import Located
from topowise.pci import Place
from topowise_scheduler.kubectl import __main__ as program
from topowise_scheduler.kubectl import arguments

from .conftest import Json

HOSTILE = "h\x1b]0;t\x07\x1b[31m\x9b2J\u202e\u2066\u200b\u200e\ufeff\U000e0041\r\nE1121_forged\u2028\x85\t\x7fh"
"""Controls, bidi overrides, invisible characters and line ends, in the middle of a name."""
HARMLESS = "".join(character if character.isprintable() else "h" for character in HOSTILE)
FORBIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


NAMES = (
    *("nvidia.com/gpu", "intel.com/e810_vf", "gpu0-", "vf0-", "trainer", "router", "frontend", "postgres", "app"),
    *("telco", "pool", "pause", "plain", "edge-1"),
)
"""Names of resources, devices, pods, containers, namespaces, labels, images and nodes of the scene."""


def renamed(document: Any, text: str) -> Any:
    """The document with a text in every name, including documents in attributes."""
    if isinstance(document, dict):
        return {renamed(key, text): renamed(value, text) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [renamed(value, text) for value in document]
    if not isinstance(document, str):
        return document
    if document[:1] in ("[", "{"):
        return json.dumps(renamed(json.loads(document), text))
    for name in NAMES:
        document = document.replace(name, f"{name}{text}")
    return document


def fields(document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each text and of each key of a free mapping."""
    if isinstance(document, dict):
        for key, value in document.items():
            if path and path[-1] in ("labels", "annotations", "requests", "limits", "allocatable"):
                yield (*path, f"key {key}")
            yield from fields(value, (*path, key))
    elif isinstance(document, list | tuple):
        for at, value in enumerate(document):
            yield from fields(value, (*path, str(at)))
    elif isinstance(document, str):
        yield path


def with_text(document: Json, path: Sequence[str], text: str) -> Json:
    """A copy with a text in the middle of a field."""
    changed = copy.deepcopy(document)
    holder: Any = changed
    for step in path[:-1]:
        holder = holder[int(step)] if isinstance(holder, list) else holder[step]
    last = path[-1]
    if last.startswith("key "):
        holder[last[4:] + text] = holder.pop(last[4:])
    elif isinstance(holder, list):
        holder[int(last)] = _within(holder[int(last)], text)
    else:
        holder[last] = _within(holder[last], text)
    return changed


def _within(value: str, text: str) -> str:
    return value[: len(value) // 2] + text + value[len(value) // 2 :]


def pod(name: str, **status: Any) -> Json:
    """A waiting or ended pod, which the cluster lacks."""
    amounts = {"cpu": "500", "memory": "1Gi", "nvidia.com/gpu": "1"}
    containers = [{"name": "app", "image": "pause", "resources": {"requests": amounts, "limits": amounts}}]
    metadata = {
        "name": name,
        "namespace": "ml",
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-05-28T20:00:00Z",
        "labels": {"app": "a"},
        "annotations": {"topowise.io/policy": "restricted", "topowise.io/device-affinity": "x"},
    }
    spec = {"containers": containers, "schedulerName": "custom", "nodeSelector": {"pool": "metal"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def objects(cluster: list[Json]) -> list[Json]:
    """Objects with every kind of text of a cluster."""
    documents = copy.deepcopy(cluster)
    near = Place(("pci0000:3a", "0000:3a:00.0"), 0)
    placed = {"0000:3b:00.0": Located("0000:3b:00.0", near), "gpu0-0": Located("0000:3c:00.0", near)}
    documents[0]["attributes"].append({"name": PCI, "value": pci_devices.write(placed).text})
    documents[0]["metadata"]["annotations"] = {"example.com/note": "text"}
    nodes = [document for document in documents if document["kind"] == "Node"]
    for node, kubelet in ((nodes[0], "v1.36.2"), (nodes[4], "v1.99.0-odd")):
        node["status"]["nodeInfo"] = {"kubeletVersion": kubelet}
        node["spec"]["taints"] = [{"key": "dedicated", "value": "team", "effect": "NoSchedule"}]
    refused = {"reason": "TopologyAffinityError", "message": "Resources cannot be allocated"}
    failed = pod("gone", phase="Failed", startTime="2026-05-28T20:20:00Z", **refused)
    failed["spec"]["nodeName"] = "metal-a"
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/6 nodes"}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "ml"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}},
        "status": {"disruptionsAllowed": 0},
    }
    return [*documents, failed, pod("waits", phase="Pending", conditions=[unschedulable]), budget]


def manifests() -> list[Json]:
    """Manifests of pods and workloads."""
    documents = list(yaml.safe_load_all((Path(__file__).parent / "manifests.yaml").read_text()))
    documents[0]["metadata"]["annotations"] = {"topowise.io/policy": "single-numa-node"}
    documents[0]["spec"]["nodeSelector"] = {"pool": "metal"}
    return documents


SELECTING = ("apiVersion", "kind")


def broken(documents: list[Json], text: str) -> list[Json]:
    """The documents, and for each field a copy with the text in the field."""
    seen, copies = set(), list(documents)
    for document in documents:
        for path in fields(document):
            kind = (document["kind"], tuple(step for step in path if not step.isdigit()))
            if kind in seen or path[-1] in SELECTING:
                continue
            seen.add(kind)
            copied = with_text(document, path, text)
            if path != ("metadata", "name"):
                copied["metadata"]["name"] = f"{document['metadata']['name']}-{len(copies)}"
            copies.append(copied)
    return copies


class Scene:
    """The files and names of a scene."""

    def __init__(self, directory: Path, cluster: list[Json], name: str, text: str) -> None:
        make = {"agreed": renamed, "broken": broken}[name]
        self.cluster, self.manifests, self.single, self.scheduler = (
            str(directory / f"{file}.json") for file in ("cluster", "manifests", "one", "scheduler")
        )
        _save(self.cluster, make(objects(cluster), text))
        _save(self.manifests, make(manifests(), text))
        _save(self.single, renamed(manifests()[:1], text))
        config = yaml.safe_load((Path(__file__).parent / "kube-scheduler.yaml").read_text())
        Path(self.scheduler).write_text(json.dumps(with_text(config, ("extenders", "0", "urlPrefix"), text)))
        self.nodes = [
            "metal-a",
            f"plain{text}" if name == "agreed" else "plain",
            f"edge-1{text}" if name == "agreed" else "edge-1",
            f"nowhere{text}",
        ]
        self.pod = ("trainer" + text, "ml") if name == "agreed" else ("trainer", "ml")


def _save(file: str, documents: list[Json]) -> None:
    Path(file).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))


def command_lines(scene: Scene) -> Iterator[list[str]]:
    """Every command of the parser in every form of its output, with and without its flags."""
    (commands,) = [
        action for action in arguments.parser("0")._actions if isinstance(action, argparse._SubParsersAction)
    ]
    for name, parser in commands.choices.items():
        options = {action.dest: action for action in parser._actions}
        flags = [
            action.option_strings[-1]
            for action in parser._actions
            if isinstance(action, argparse._StoreTrueAction) and action.dest != "server_side"
        ]
        forms = list(options["output"].choices or ()) if "output" in options else [None]
        for values in _values(name, options, scene):
            for form in forms or [None]:
                for more in ([], flags) if flags else ([],):
                    yield [name, *values, *(["-o", form] if form else []), *more]


def _values(name: str, options: dict[str, argparse.Action], scene: Scene) -> Iterator[list[str]]:
    positional = [action.dest for action in options.values() if not action.option_strings]
    if name == "help":
        yield ["nodes"]
        return
    cluster = ["--nodes-file", scene.cluster] if "nodes_file" in options else ["-f", scene.cluster]
    if "scheduler_config" in options:
        yield [*cluster, "--scheduler-config", scene.scheduler]
        return
    assert positional in (["name"], ["names"], ["pod"]), f"{name} takes {positional}, which this test has no value for"
    if positional == ["name"]:
        yield from ([node, *cluster] for node in scene.nodes)
    elif positional == ["names"]:
        yield cluster
        yield [*scene.nodes[:2], *cluster]
    else:
        for file in (scene.manifests, scene.single):
            yield ["-f", file, *cluster]
        pod, namespace = scene.pod
        yield [pod, "-n", namespace, *cluster]


@pytest.fixture
def cluster(saved: Callable[..., str]) -> list[Json]:
    """The saved objects of the cluster."""
    documents: list[Json] = json.loads(Path(saved()).read_text())["items"]
    return documents


@pytest.fixture(params=["agreed", "broken"])
def scenes(request: pytest.FixtureRequest, tmp_path: Path, cluster: list[Json]) -> tuple[Scene, Scene]:
    """A scene with hostile names, and the same scene with harmless names."""
    pair = []
    for directory, text in (("hostile", HOSTILE), ("harmless", HARMLESS)):
        (tmp_path / directory).mkdir()
        pair.append(Scene(tmp_path / directory, cluster, request.param, text))
    return pair[0], pair[1]


def run_command(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Status, stdout and stderr of the command."""
    try:
        status = program.main(words)
    except SystemExit as exc:
        status = int(exc.code or 0)
    out, err = capfd.readouterr()
    return status, out, err


def rows(text: str) -> int:
    """The number of lines, without continuation lines."""
    return sum(not line.startswith(" " * 9) for line in text.splitlines())


def notes(text: str) -> int:
    """The number of lines, without the lines about the progress, which a busy machine adds."""
    return sum(not line.endswith(" ...") for line in text.splitlines())


def test_no_command_prints_invisible_characters_and_no_name_adds_a_row(
    scenes: tuple[Scene, Scene], capfd: pytest.CaptureFixture[str]
) -> None:
    # Names may be truncated, so each command has to show a name only once.
    unseen = {words[0] for words in command_lines(scenes[0])} - {"help"}
    statuses = set()
    for words, same in zip(command_lines(scenes[0]), command_lines(scenes[1]), strict=True):
        status, out, err = run_command(words, capfd)
        assert not FORBIDDEN.search(out), (words, FORBIDDEN.search(out))
        assert not FORBIDDEN.search(err), (words, err)
        harmless_status, harmless_out, harmless_err = run_command(same, capfd)
        assert status == harmless_status, (words, err, harmless_err)
        if "yaml" not in words and (words[0] != "node" or "wide" in words):
            # The number of lines of a picture, and of a long YAML key, depends on the width.
            assert rows(out) == rows(harmless_out), words
        assert notes(err) == notes(harmless_err), (words, err, harmless_err)
        statuses.add(status)
        if "x1b" in out + err or "u001b" in out + err:
            unseen.discard(words[0])
    assert not unseen
    assert statuses >= {0, 1, 2}


@pytest.mark.nightly
def test_in_colour_only_the_colours_are_sequences(scenes: tuple[Scene, Scene], ask: Callable[..., Any]) -> None:
    for words in command_lines(scenes[0]):
        if words[0] == "help" or scenes[0].nodes[3] in words:
            continue
        try:
            plain, coloured = (ask(*words, width=120, is_colour=is_colour).text for is_colour in (False, True))
        except program.TopowiseError:
            continue
        assert not FORBIDDEN.search(plain), words
        without = re.sub("\x1b\\[[0-9;]*m", "", coloured)
        # In colour, the rest of a bar has no line.
        assert [line.rstrip() for line in without.splitlines()] == [
            line.replace("━", " ").rstrip() for line in plain.splitlines()
        ]


def test_documents_keep_names_unescaped(tmp_path: Path, cluster: list[Json], capfd: pytest.CaptureFixture[str]) -> None:
    scene = Scene(tmp_path, cluster, "agreed", HOSTILE)
    for form, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        _, out, _ = run_command(["nodes", "-f", scene.cluster, "-o", form], capfd)
        assert f"edge-1{HOSTILE}" in [node["node"] for node in load(out)]
        assert f"nvidia.com/gpu{HOSTILE}" in load(out)[1]["free"]


@pytest.mark.parametrize(
    "words",
    [
        ["nodes", HOSTILE, "--sort-by", HOSTILE],
        [HOSTILE],
        ["node", "a", "b", HOSTILE],
        ["fits", "-f", HOSTILE],
        ["node", "a", "-o", HOSTILE],
    ],
)
def test_errors_about_arguments_are_lines(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = run_command(words, capfd)
    assert (status, out) == (2, "")
    assert not FORBIDDEN.search(err)
    assert not any(line.startswith("E1121") for line in err.splitlines())
