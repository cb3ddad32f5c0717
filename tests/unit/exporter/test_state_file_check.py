"""State files that the kubelet would refuse at its next start, on the machine and configuration of the exporter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topowise.attributes import confirmation
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_exporter.kubelet.allocations import Allocatable
from topowise_exporter.machine.inventory import Machine, NumaNode
from topowise_exporter.state_file_check import StartCheck

GIB = 1 << 30
CONFIG = KubeletConfiguration(
    cpuManagerPolicy="static",
    memoryManagerPolicy="Static",
    reservedSystemCPUs="0",
    reservedMemory=(MemoryReservation(0, {"memory": "1Gi"}),),
)


def node(number: int, **changed: Any) -> NumaNode:
    return msgspec.convert(
        {
            "id": number,
            "cpus": [2 * number, 2 * number + 1],
            "memory_bytes": 8 * GIB,
            "hugepages": {2 << 20: 512},
            "distances": {},
            "sockets": [0],
            **changed,
        },
        NumaNode,
    )


def two(**changed: Any) -> Machine:
    online = (0, 1, 2, 3)
    return Machine((node(0), node(1, **changed)), (), (), online, online, online, (), ())


def memory_node(number: int, reserved: int) -> dict[str, Any]:
    pages, total = GIB, 8 * GIB
    left = total - reserved - pages
    return {
        "numberOfAssignments": 0,
        "memoryMap": {
            "memory": {"total": total, "systemReserved": reserved, "allocatable": left, "reserved": 0, "free": left},
            "hugepages-2Mi": {"total": pages, "systemReserved": 0, "allocatable": pages, "reserved": 0, "free": pages},
        },
        "cells": [number],
    }


def write(root: Path, cpus: str = "0-3") -> StartCheck:
    (root / "cpu_manager_state").write_text(json.dumps({"policyName": "static", "defaultCpuSet": cpus, "checksum": 0}))
    state = {"0": memory_node(0, GIB), "1": memory_node(1, 0)}
    (root / "memory_manager_state").write_text(json.dumps({"policyName": "Static", "machineState": state}))
    return StartCheck(root)


ALLOCATABLE = Allocatable(cpus=frozenset((1, 2, 3)))
TIMES = count(0.0, 100.0)


def compare(check: StartCheck, config: KubeletConfiguration, machine: Machine) -> Mapping[str, str]:
    """The problems after nothing has changed for a while."""
    now = next(TIMES)
    check.compare(config, machine, ALLOCATABLE, now)
    return check.compare(config, machine, ALLOCATABLE, now + 5.0)


def test_matching_and_missing_files_are_accepted(tmp_path: Path) -> None:
    check = write(tmp_path)
    assert compare(check, CONFIG, two()) == {}
    amount = msgspec.structs.replace(CONFIG, reservedSystemCPUs="", systemReserved={"cpu": "1"})
    assert compare(check, amount, two()) == {}
    nothing = StartCheck(tmp_path / "elsewhere")
    assert compare(nothing, CONFIG, two()) == {}


def test_what_has_changed_since_is_named_by_file(tmp_path: Path) -> None:
    check = write(tmp_path)
    problems = compare(check, CONFIG, two(cpus=(2,), memory_bytes=8 * GIB + 4096))
    assert problems == {
        "cpu_manager_state": 'current set of available CPUs "0-2" doesn\'t match with CPUs in state "0-3" (3 went)',
        "memory_manager_state": "[memorymanager] the expected machine state is different from the real one "
        f"(node 1, memory: total {8 * GIB}, now {8 * GIB + 4096})",
    }
    changed = msgspec.structs.replace(CONFIG, cpuManagerPolicy="none", memoryManagerPolicy="None")
    problems = compare(check, changed, two())
    assert sorted(problems) == ["cpu_manager_state", "memory_manager_state"]
    assert 'configured policy "none" differs from state checkpoint policy "static"' in problems["cpu_manager_state"]


def test_a_reservation_that_was_changed(tmp_path: Path) -> None:
    check = write(tmp_path, cpus="0,2-3")
    problems = compare(check, msgspec.structs.replace(CONFIG, reservedSystemCPUs="0-1"), two())
    assert "not all reserved cpus" in problems["cpu_manager_state"]
    more = msgspec.structs.replace(CONFIG, reservedMemory=(MemoryReservation(0, {"memory": "2Gi"}),))
    problems = compare(check, more, two())
    assert "system reserved" in problems["memory_manager_state"]


@pytest.mark.parametrize(
    ("version", "options", "cpus", "starts"),
    [
        # strict-cpu-reservation: the kubelets of OpenShift compare with all CPUs.
        ("v1.33.6", {"strict-cpu-reservation": "true"}, "1-3", True),
        ("v1.33.6+0d2b5f1", {"strict-cpu-reservation": "true"}, "1-3", False),
        # Workload partitioning of OpenShift takes the reserved CPUs out of the shared CPUs.
        ("v1.33.6", {}, "1-3", False),
        ("v1.33.6+0d2b5f1", {}, "1-3", True),
        ("v1.33.6+0d2b5f1", {}, "0-3", True),
        ("v1.33.6+0d2b5f1", {}, "1-2", False),
        ("v1.33.6+0d2b5f1", {}, "", True),
    ],
)
def test_reserved_cpus_in_the_file_of_an_openshift(
    tmp_path: Path, version: str, options: dict[str, str], cpus: str, starts: bool
) -> None:
    check = write(tmp_path, cpus=cpus)
    config = msgspec.structs.replace(CONFIG, cpuManagerPolicyOptions=options)
    assert (check.compare(config, two(), ALLOCATABLE, next(TIMES), version) == {}) is starts


def test_a_node_without_memory_has_no_hugepages_of_any_size(tmp_path: Path) -> None:
    check = write(tmp_path)
    path = tmp_path / "memory_manager_state"
    state = json.loads(path.read_bytes())
    nothing = dict.fromkeys(("total", "systemReserved", "allocatable", "reserved", "free"), 0)
    state["machineState"]["1"]["memoryMap"] = {"memory": nothing}
    path.write_text(json.dumps(state))
    assert compare(check, CONFIG, two(memory_bytes=0, hugepages={})) == {}
    problems = compare(check, CONFIG, two(memory_bytes=0, hugepages={2 << 20: 0}))
    assert "node 1: memory, now hugepages-2Mi, memory" in problems["memory_manager_state"]


@pytest.mark.parametrize(("version", "starts"), [("v1.31.14", False), ("v1.32.0", True), (None, True)])
def test_before_1_32_the_memory_of_a_group_must_equal_by_numa_node(
    tmp_path: Path, version: str | None, starts: bool
) -> None:
    """A release in a group returns memory to the first NUMA node, whichever NUMA node has provided it."""
    check = write(tmp_path)
    nodes = {str(number): {**memory_node(number, (GIB, 0)[number]), "cells": [0, 1]} for number in (0, 1)}
    for node, reserved in zip(nodes.values(), (4 * GIB, 6 * GIB), strict=True):
        memory = node["memoryMap"]["memory"]
        memory["reserved"], memory["free"] = reserved, memory["allocatable"] - reserved
        node["numberOfAssignments"] = 1
    entries = {"p": {"c": [{"numaAffinity": [0, 1], "type": "memory", "size": 10 * GIB}]}}
    state = {"policyName": "Static", "machineState": nodes, "entries": entries}
    (tmp_path / "memory_manager_state").write_text(json.dumps(state))
    problems = check.compare(CONFIG, two(), ALLOCATABLE, next(TIMES), version)
    assert ("memory_manager_state" not in problems) == starts


def test_a_node_of_a_group_that_has_lost_a_size_is_named(tmp_path: Path) -> None:
    check = write(tmp_path)
    path = tmp_path / "memory_manager_state"
    state = json.loads(path.read_bytes())
    state["entries"] = {"p": {"c": [{"numaAffinity": [0, 1], "type": "memory", "size": 4096}]}}
    for node in ("0", "1"):
        state["machineState"][node] |= {"cells": [0, 1], "numberOfAssignments": 1}
    taken = state["machineState"]["0"]["memoryMap"]["memory"]
    taken |= {"reserved": taken["reserved"] + 4096, "free": taken["free"] - 4096}
    path.write_text(json.dumps(state))
    assert compare(check, CONFIG, two()) == {}
    problems = compare(check, CONFIG, two(memory_bytes=7 * GIB, hugepages={}))
    assert "node 1: hugepages-2Mi, memory, now memory" in problems["memory_manager_state"]


def test_words_that_quote_the_pods_of_the_moment_do_not_change_with_them(tmp_path: Path) -> None:
    check = write(tmp_path, cpus="1-3")
    first = compare(check, CONFIG, two())["cpu_manager_state"]
    assert 'defaultCpuSet: "1-3"' in first
    state = {"policyName": "static", "defaultCpuSet": "2-3", "entries": {"u": {"c": "0-1"}}}
    (tmp_path / "cpu_manager_state").write_text(json.dumps(state))
    assert compare(check, CONFIG, two())["cpu_manager_state"] == first
    write(tmp_path)
    assert compare(check, CONFIG, two()) == {}


def test_a_half_written_admission_is_not_a_kubelet_that_will_not_start(tmp_path: Path) -> None:
    check = write(tmp_path)
    check.compare(CONFIG, two(), ALLOCATABLE, 0.0)
    # The CPUs have left the shared pool, and have no owner for some milliseconds, or as long as a slow disk takes.
    for now, cpus in ((1.0, "0,2-3"), (4.0, "0,2-3"), (5.5, "0,3"), (10.4, "0,3")):
        write(tmp_path, cpus=cpus)
        assert check.compare(CONFIG, two(), ALLOCATABLE, now) == {}
    assert check.compare(CONFIG, two(), ALLOCATABLE, 10.5).keys() == {"cpu_manager_state"}
    write(tmp_path)
    assert check.compare(CONFIG, two(), ALLOCATABLE, 11.0).keys() == {"cpu_manager_state"}
    assert check.compare(CONFIG, two(), ALLOCATABLE, 16.0) == {}


def test_it_is_published_and_read_back() -> None:
    shown = {"cpu_manager_state": 'not all "reserved"'}
    name, read = "topowise.io/refused-state-files", confirmation.refused_state_files
    assert read({name: confirmation.refused_text(shown)}) == shown
    assert read({name: "[1]"}) == read({}) == {}


@pytest.mark.parametrize("text", ["null", "[]", "1", '"x"', "true", "{}x", '{"checksum":1,"machineState":{"x":{}}}'])
def test_a_file_that_is_no_object_of_the_kubelets_form_is_refused(tmp_path: Path, text: str) -> None:
    for name in ("cpu_manager_state", "memory_manager_state"):
        check = write(tmp_path)
        (tmp_path / name).write_text(text)
        assert list(compare(check, CONFIG, two())) == [name]
