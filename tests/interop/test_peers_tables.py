"""The expectations of other schedulers' own tests, checked against the report reader, the engine and the model.

peers/situations.txt has sections; bars separate the fields of a line, semicolons the containers of a pod. "init:" and
"sidecar:" say what a container is, "~" that it has no limits for CPU and memory. Other containers with a limit for
CPU or memory get both, so that the pod is Guaranteed as the peers' tests assume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from scheduling import Service
from topowise import cpuset, nrt
from topowise.pods import HUGEPAGES
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.kubelet import Core, Kubelet, Machine, NumaNode
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.configuration import CpuSettings, TopologySettings
from topowise_scheduler.kubelet.cpu_manager import CpuManager, CpuPolicy
from topowise_scheduler.kubelet.cpu_topology import CpuTopology
from topowise_scheduler.kubelet.hints import Hint, Hints, Refused
from topowise_scheduler.kubelet.masks import mask_of, masks_in, members
from topowise_scheduler.kubelet.pod import ContainerView, PodView
from topowise_scheduler.kubelet.topology_manager import TopologyManager
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.verdicts import strategies

FILE: Final = Path(__file__).parent / "peers" / "situations.txt"
NATIVE: Final = ("cpu", "memory", "ephemeral-storage")


class Line(NamedTuple):
    """A situation; `peer` is the peer's answer, `expected` ours, `why` the reason of a difference."""

    fields: tuple[str, ...]
    peer: str
    expected: str
    why: str


def section(name: str) -> list[list[str]]:
    """The lines of a section, by fields."""
    text = FILE.read_text().partition(f"[{name}]\n")[2].partition("\n[")[0]
    return [
        [field.strip() for field in line.split("|")] for line in text.splitlines() if line and not line.startswith("#")
    ]


def situations(name: str, count: int) -> Iterator[Any]:
    """The situations of a section, whose first fields are given."""
    for fields in section(name):
        peer, arrow, expected = fields[count].partition(" -> ")
        why = fields[count + 1] if arrow else ""
        yield pytest.param(Line(tuple(fields[:count]), peer, expected or peer, why), id=" | ".join(fields))


def resource(name: str) -> str:
    """The name in full."""
    return name if name in NATIVE or name.startswith(HUGEPAGES) else f"example.com/{name}"


def pairs(text: str) -> dict[str, str]:
    """ "cpu 4 memory 8Gi"."""
    words = text.split()
    return {resource(name): amount for name, amount in zip(words[::2], words[1::2], strict=True)}


NODES: Final = {fields[0]: fields[1:] for fields in section("nodes")}


def report(name: str) -> nrt.NodeResourceTopology:
    """A node as its exporter would report it, with the deprecated policy names of the peers' tests."""
    (how, *zones) = NODES[name]
    policy, scope = how.split()
    document = {
        "metadata": {"name": name},
        "topologyPolicies": [f"{''.join(part.capitalize() for part in policy.split('-'))}{scope.capitalize()}Level"],
        "zones": [_zone(at, text) for at, text in enumerate(zones)],
    }
    return nrt.decode(msgspec.json.encode(document))


def _zone(at: int, text: str) -> dict[str, Any]:
    number, colon, rest = text.partition(":")
    resources = []
    for name, amount in pairs(rest if colon else text).items():
        available, _, allocatable = amount.partition("/")
        total = allocatable or available
        resources.append({"name": name, "capacity": total, "allocatable": total, "available": available})
    return {"name": f"node-{number if colon else at}", "type": "Node", "resources": resources}


def pod(text: str) -> dict[str, Any]:
    """The pod's JSON."""
    spec: dict[str, list[dict[str, Any]]] = {"initContainers": [], "containers": []}
    for at, part in enumerate(text.split(";")):
        kind, colon, amounts = part.strip().rpartition(":")
        container: dict[str, Any] = {"name": f"c{at}", "resources": _resources(amounts.strip())}
        if kind == "sidecar":
            container["restartPolicy"] = "Always"
        spec["initContainers" if colon else "containers"].append(container)
    return {"metadata": {"name": "p", "namespace": "default", "uid": "uid-p"}, "spec": spec}


def _resources(text: str) -> Mapping[str, Mapping[str, str]]:
    amounts = pairs(text.removeprefix("~")) if text != "-" else {}
    if text.startswith("~"):
        return {"requests": amounts, "limits": {name: amount for name, amount in amounts.items() if name not in NATIVE}}
    if "cpu" in amounts or "memory" in amounts:
        amounts = {"cpu": "100m", "memory": "1Mi", **amounts}
    return {"requests": amounts, "limits": amounts}


def served(*names: str) -> Service:
    """A service with these nodes, whose kubelets have hugepages of 2 MiB."""
    service = Service()
    service.answers = Answers(
        service.ledger, service.records, strategies.make("LeastNUMANodes", {}, Scoring()), top_score=100
    )
    for name in names:
        service.ledger.reports.put_kubelet(name, "", ("hugepages-2Mi",))
        service.report(report(name))
    return service


@pytest.mark.parametrize("line", list(situations("fits", 2)))
def test_a_pod_fits_where_the_peer_says_so_or_differs_for_a_named_reason(line: Line) -> None:
    name, text = line.fields
    service = served(name)
    question = service.question(pod(text), name)
    node_state = service.ledger.node_states.of(name)
    assert node_state is not None
    assert node_state.kubelet is not None
    kubelet = node_state.kubelet.fork()
    admission = kubelet.admit_view(question.record.view(kubelet))
    verdict, on, zones = line.expected.partition(" on ")
    assert ("fits" if admission.admitted else "refused") == verdict
    assert ("" if service.answers.verdicts(question).refusal(0) else "fits") == ("fits" if verdict == "fits" else "")
    if on:
        assert ",".join(map(str, _lies(kubelet))) == zones


def _lies(kubelet: Kubelet) -> list[int]:
    mask = 0
    for place in allocated_nodes(kubelet, "uid-p").values():
        mask |= place.mask
    return [kubelet.node_ids[position] for position in members(mask)]


@pytest.mark.parametrize("line", list(situations("scores", 2)))
def test_scores_equal_the_scores_of_the_peer(line: Line) -> None:
    names, text = line.fields[0].split(), line.fields[1]
    service = served(*names)
    question = service.question(pod(text), *names)
    fits = [not service.answers.verdicts(question).refusal(at) for at in range(len(names))]
    scores = service.answers.scores(question).tolist()
    assert [score if fit else 0 for score, fit in zip(scores, fits, strict=True)] == [
        int(score) for score in line.expected.split()
    ]


def hints(text: str) -> Hints:
    """Parses "01 0*": fitting masks; `*` marks the preferred masks."""
    fits = preferred = 0
    for word in text.replace("-", "").split():
        mask = mask_of(map(int, word.rstrip("*")))
        fits |= 1 << mask
        preferred |= word.endswith("*") << mask
    return Hints(fits, preferred)


@pytest.mark.parametrize("line", list(situations("merges", 2)))
def test_hints_merge_as_the_peer_merges_them_or_differ_for_a_named_reason(line: Line) -> None:
    policy, providers = line.fields
    nodes = [NumaNode(id=node, memory=0) for node in range(2)]
    manager = TopologyManager(TopologySettings(policy, "container"), nodes)
    merged, admitted = manager.decide([hints(provider) for provider in providers.split(";")])
    mask = manager.default if merged.mask is None else merged.mask
    assert "".join(map(str, members(mask))) + "*" * merged.preferred == line.expected
    assert admitted == (policy == "best-effort" or merged.preferred)


def cpu_manager(free: str) -> CpuManager:
    """Two NUMA nodes with two cores of two threads each."""
    cores = [tuple(Core(node, (2 * core, 2 * core + 1)) for core in (2 * node, 2 * node + 1)) for node in range(2)]
    machine = Machine(numa=tuple([NumaNode(id=node, memory=0, cores=siblings) for node, siblings in enumerate(cores)]))
    manager = CpuManager(CpuPolicy(CpuTopology(machine), CpuSettings(0, 0), 2))
    manager.default = mask_of(cpuset.parse(free))
    return manager


def cpu_pod(count: int) -> PodView:
    """A Guaranteed pod of one container."""
    container = ContainerView("c", "app", count, {}, {}, "app")
    return PodView("uid", "Guaranteed", (container,), {}, True, False, count, {})


@pytest.mark.parametrize("line", list(situations("cpus", 2)))
def test_the_hints_for_cpus_equal_the_hints_of_the_peer(line: Line) -> None:
    document = cpu_pod(int(line.fields[1]))
    verdict = cpu_manager(line.fields[0]).hints(document, document.containers[0])["cpu"]
    assert verdict == hints(line.expected)


@pytest.mark.parametrize("line", list(situations("taken", 3)))
def test_the_cpus_taken_equal_the_cpus_of_the_peer(line: Line) -> None:
    free, count, where = line.fields
    manager = cpu_manager(free)
    (mask,) = masks_in(hints(where).fits)
    try:
        taken = manager._take(int(count), Hint(mask, True), 0)
    except Refused:
        taken = 0
    assert (cpuset.to_text(members(taken)) or "-") == line.expected


def test_every_reason_is_named_and_every_line_was_played() -> None:
    reasons = {fields[0] for fields in section("reasons")}
    counted = {"fits": 2, "scores": 2, "merges": 2, "cpus": 2, "taken": 3}
    lines = [param.values[0] for name, count in counted.items() for param in situations(name, count)]
    assert {line.why for line in lines} - {""} == reasons
    assert len(lines) >= 140
    assert all(bool(line.why) == (line.expected != line.peer) for line in lines)
    played = {name for line in lines for name in line.fields[0].split()}
    assert played >= NODES.keys()
