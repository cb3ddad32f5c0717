"""Restarts equal those of the code of five minors, 1.28.15 to 1.36.2: refused pods, and managers that do not start.

So do admissions without the gate PodLevelResources, and on machines whose cores lack siblings.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import msgspec
import pytest

from recordings import differences
from topowise import cpuset
from topowise_scheduler.kubelet import version_of
from topowise_scheduler.kubelet.predicates import LACKS_GATE
from topowise_scheduler.report import replay

RECORDED = Path(__file__).parent / "recorded" / "restarts.jsonl.xz"
SIBLINGS_AND_GATES = RECORDED.parent / "siblings-and-gates.jsonl.xz"
PANICS = RECORDED.parent / "panics.jsonl.xz"
RARE_PODS = RECORDED.parent / "rare-pods.jsonl.xz"


def test_every_restart_equals_the_recording() -> None:
    lines = lzma.decompress(RECORDED.read_bytes()).splitlines()
    recorded = [json.loads(line)["result"] for line in lines]
    restarts = [event for result in recorded for event in result.get("events", ()) if event["op"] == "restart"]
    assert sum("error" in event for event in restarts) >= 15
    assert sum(not pod["admitted"] for event in restarts for pod in event.get("readmitted") or ()) >= 50
    assert [problem for line in lines for problem in differences(line)] == []


def test_pods_without_the_gate_and_cpus_of_two_pods_equal_the_recording() -> None:
    lines = lzma.decompress(SIBLINGS_AND_GATES.read_bytes()).splitlines()
    events = [event for line in lines for event in json.loads(line)["result"]["events"]]
    assert sum(event.get("reason") == LACKS_GATE for event in events) >= 20
    assert sum(_shares_cpus(json.loads(line)["result"]["events"]) for line in lines) >= 20
    assert [problem for line in lines for problem in differences(line)] == []


def test_panics_and_earlier_admissions_equal_the_recording() -> None:
    lines = lzma.decompress(PANICS.read_bytes()).splitlines()
    assert [problem for line in lines for problem in differences(line)] == []
    assert sum(b'"panic"' in line for line in lines) >= 30


def test_rare_pods_equal_the_recording() -> None:
    """Each reveals a mistake that no other recording reveals."""
    lines = lzma.decompress(RARE_PODS.read_bytes()).splitlines()
    assert len(lines) == 10
    assert [problem for line in lines for problem in differences(line)] == []


@pytest.mark.parametrize("change", ["pod_level_pods_need_their_gate", "pod_level_pods_are_never_aligned"])
def test_without_a_change_of_the_gate_the_decisions_differ(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = lzma.decompress(SIBLINGS_AND_GATES.read_bytes()).splitlines()
    lines = [line for line in recorded if b'"kubeletVersion":"v1.36.2"' in line]
    version = version_of("v1.36.2")
    before = msgspec.structs.replace(version.behaviour, **{change: False})
    monkeypatch.setattr(replay, "version_of", lambda _: msgspec.structs.replace(version, behaviour=before))
    assert any(differences(line) for line in lines)


def _shares_cpus(events: list[dict[str, Any]]) -> bool:
    """Whether a pod gets a CPU that an admitted pod has."""
    cpus_of: dict[str, frozenset[int]] = {}
    for event in events:
        if event["op"] == "admit" and event["admitted"]:
            containers = event["containers"].values()
            cpus = frozenset(cpu for container in containers for cpu in cpuset.parse(container["cpus"] or ""))
            if any(cpus & others for others in cpus_of.values()):
                return True
            cpus_of[event["uid"]] = cpus
        elif event["op"] == "remove":
            cpus_of.pop(event["uid"], None)
    return False


def test_before_1_32_the_memory_manager_compares_each_numa_node() -> None:
    lines = lzma.decompress(RECORDED.read_bytes()).splitlines()
    old = [line for line in lines if b'"kubeletVersion":"v1.31' in line]
    assert len(old) >= 5
    for line in old:
        later = line.replace(b'"kubeletVersion":"v1.31.14"', b'"kubeletVersion":"v1.32.0"')
        assert differences(line) == []
        assert differences(later) != []


@pytest.mark.parametrize(("version", "other", "least"), [(b"v1.28.15", b"v1.29.14", 2), (b"v1.35.6", b"v1.36.2", 3)])
def test_another_version_restarts_otherwise(version: bytes, other: bytes, least: int) -> None:
    lines = lzma.decompress(RECORDED.read_bytes()).splitlines()
    of_version = [line for line in lines if b'"kubeletVersion":"%b"' % version in line]
    assert len(of_version) >= 9
    assert sum(bool(differences(line.replace(version, other))) for line in of_version) >= least
