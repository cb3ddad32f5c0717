"""State files that would prevent a kubelet restart (validateState of the CPU and memory managers)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from kubelets import GI, kubelet_of, machine_of, pod_of
from state_problems import cpu_state_problem, memory_state_problem
from topowise import cpuset
from topowise.start_check import cpu_problem, memory_problem
from topowise_scheduler.kubelet import Kubelet, KubeletConfiguration, Machine, MemoryReservation, NumaNode
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.kubelet.restart import memory_amounts, restart


def _spelled(cpus: int) -> str:
    return cpuset.to_text(members(cpus))


def _cpu_state(kubelet: Kubelet) -> bytes:
    """The kubelet's state file (CPUManagerCheckpointV2)."""
    assert kubelet.cpu is not None
    entries = {
        uid: {name: _spelled(cpus) for name, cpus in containers.items()}
        for uid, containers in kubelet.cpu.allocations.items()
    }
    state = {"policyName": "static", "defaultCpuSet": _spelled(kubelet.cpu.default), "entries": entries, "checksum": 1}
    return json.dumps(state).encode()


def _memory_state(kubelet: Kubelet) -> bytes:
    """The kubelet's state file (MemoryManagerCheckpoint)."""
    assert kubelet.memory is not None
    tables, policy = kubelet.memory.tables, kubelet.memory.policy
    machine_state = {
        str(node): {
            "numberOfAssignments": tables.assignments[position],
            "memoryMap": {
                name: {
                    "total": policy.total[name][position],
                    "systemReserved": policy.system_reserved[position].get(name, 0),
                    "allocatable": policy.allocatable[name][position],
                    "reserved": tables.reserved(name, position),
                    "free": tables.free[name][position],
                }
                for name in policy.total
            },
            "cells": list(kubelet.ids(tables.cells[position])),
        }
        for position, node in enumerate(kubelet.node_ids)
    }
    entries = {
        uid: {
            name: [
                {"numaAffinity": kubelet.ids(block.mask), "type": block.type, "size": block.size} for block in blocks
            ]
            for name, blocks in containers.items()
        }
        for uid, containers in kubelet.memory.allocations.items()
    }
    state = {"policyName": "Static", "machineState": machine_state, "entries": entries, "checksum": 1}
    return json.dumps(state).encode()


@pytest.fixture
def busy() -> Kubelet:
    """Two NUMA nodes of four cores and 8 GiB, a pod on both nodes, a shared pod, and a finished init container."""
    machine = machine_of(4, 4, hugepages=[{2048: 512}, {2048: 512}])
    kubelet = kubelet_of(machine, topologyManagerPolicy="best-effort")
    assert kubelet.admit(pod_of("wide", {"cpu": "9", "memory": "10Gi", "hugepages-2Mi": "4Mi"})).admitted
    assert kubelet.admit(pod_of("shared", {"cpu": "500m", "memory": "1Gi"})).admitted
    small = {"cpu": "1", "memory": "1Gi"}
    assert kubelet.admit(pod_of("after", small, init=[small])).admitted
    return kubelet


def test_a_kubelet_restarts_with_its_own_state_files(busy: Kubelet) -> None:
    assert cpu_state_problem(busy, _cpu_state(busy)) is None
    assert memory_state_problem(busy, _memory_state(busy)) is None


def test_an_empty_machine_starts_again_too() -> None:
    strict = kubelet_of(machine_of(4), cpuManagerPolicyOptions={"strict-cpu-reservation": "true"})
    assert cpu_state_problem(strict, _cpu_state(strict)) is None
    assert memory_state_problem(strict, _memory_state(strict)) is None
    assert cpu_state_problem(strict, b'{"policyName":"static","defaultCpuSet":""}') is None
    assert memory_state_problem(strict, b'{"policyName":"Static","machineState":{}}') is None


def test_a_policy_that_was_changed_is_refused(busy: Kubelet) -> None:
    off = kubelet_of(machine_of(4, 4), static=False)
    problem = cpu_state_problem(off, _cpu_state(busy))
    assert problem is not None
    restored = "could not restore state from checkpoint: "
    assert problem.error == f'{restored}configured policy "none" differs from state checkpoint policy "static"'
    problem = memory_state_problem(off, _memory_state(busy))
    assert problem is not None
    assert problem.error.endswith(
        '[memorymanager] configured policy "None" differs from state checkpoint policy "Static"'
    )
    assert cpu_state_problem(off, b'{"policyName":"none","defaultCpuSet":"0-2"}') is None
    assert memory_state_problem(off, b'{"policyName":"None"}') is None


def _changed(busy: Kubelet, **fields: Any) -> Kubelet:
    machine = machine_of(4, 4, hugepages=[{2048: 512}, {2048: 512}])
    return kubelet_of(machine, topologyManagerPolicy="best-effort", **fields)


def test_newly_reserved_but_allocated_cpus_are_reported(busy: Kubelet) -> None:
    after = _changed(busy, reservedSystemCPUs="0,1", systemReserved={"memory": "1Gi"})
    problem = cpu_state_problem(after, _cpu_state(busy))
    assert problem is not None
    assert problem.error.startswith('not all reserved cpus: "0-1" are present in defaultCpuSet: "0')
    assert problem.detail == "1 is held by a container"


def test_strict_reservation_needs_new_state_files(busy: Kubelet) -> None:
    after = _changed(busy, cpuManagerPolicyOptions={"strict-cpu-reservation": "true"})
    problem = cpu_state_problem(after, _cpu_state(busy))
    assert problem is not None
    assert problem.error.startswith('some of strictly reserved cpus: "0" are present in defaultCpuSet: "0')


@pytest.mark.parametrize(("cores", "detail"), [((4, 3), "14-15 went"), ((4, 5), "16-17 came")])
def test_added_and_removed_cpus_are_named(cores: tuple[int, int], detail: str) -> None:
    before, after = (kubelet_of(machine_of(sum(count), threads=2)) for count in ((4, 4), cores))
    problem = cpu_state_problem(after, _cpu_state(before))
    assert problem is not None
    assert problem.error.startswith("current set of available CPUs")
    assert problem.detail == detail


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"default": "0-7", "entries": {"p": {"c": "7"}}}, 'pod: p, container: c cpuset: "7" overlaps with'),
        ({"default": "0-6", "entries": {"0123abc": "7"}}, ""),
        ({"default": "0-7", "entries": {"0123abc": "7"}}, 'container id: 0123abc cpuset: "7" overlaps with'),
        ({"default": "", "entries": {"p": {"c": "7"}}}, "default cpuset cannot be empty"),
        ({"default": "0-x"}, "could not restore state from checkpoint: checkpoint is corrupted"),
        ({"default": "0-5", "pods": {"p": {"cpuSet": "6-7"}}}, ""),
        ({"default": "0-5", "pods": {"p": {"cpuSet": "6"}}}, 'current set of available CPUs "0-7" doesn'),
    ],
)
@pytest.mark.parametrize("as_data", [False, True], ids=["v2", "v4"])
def test_checkpoints_of_every_form_are_read(fields: Mapping[str, Any], error: str, as_data: bool) -> None:
    state = {
        "policyName": "static",
        "defaultCpuSet": fields["default"],
        "entries": fields.get("entries"),
        "podEntries": fields.get("pods"),
    }
    if as_data:
        # Since V4, kubelets read `data`; the remaining fields are for older kubelets.
        state = {"policyName": "none", "defaultCpuSet": "", "data": json.dumps(state), "dataChecksum": 1}
    text = json.dumps(state).encode()
    problem = cpu_problem(text, policy="static", cpus=frozenset(range(8)), reserved=frozenset({0}))
    assert ("" if problem is None else problem.error)[: len(error) or None] == error


def _with(state: bytes, path: tuple[str, ...], value: Any) -> bytes:
    document = json.loads(state)
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(document).encode()


def test_memory_that_differs_after_a_reboot_is_reported(busy: Kubelet) -> None:
    stored = json.loads(_memory_state(busy))["machineState"]["1"]["memoryMap"]["memory"]["total"]
    text = _with(_memory_state(busy), ("machineState", "1", "memoryMap", "memory", "total"), stored + 4096)
    problem = memory_state_problem(busy, text)
    assert problem is not None
    assert problem.error == "[memorymanager] the expected machine state is different from the real one"
    assert problem.detail == f"node 1, memory: total {stored + 4096}, now {stored}"


@pytest.mark.parametrize(
    ("path", "value", "detail"),
    [
        (("machineState", "0", "numberOfAssignments"), 9, "node 0: 9 assignments, 5 in its entries"),
        (("machineState", "0", "cells"), [0], "node 0: grouped with 0, by its entries 0-1"),
        (("machineState", "0", "cells"), None, "node 0: grouped with , by its entries 0-1"),
        (("machineState", "0", "memoryMap", "hugepages-2Mi", "free"), 0, "node 0, hugepages-2Mi: free"),
        (("machineState", "2"), {}, "NUMA nodes 0-2 in the file, 0-1 on the machine"),
        (("machineState", "0", "memoryMap"), {}, "node 0: , now hugepages-2Mi, memory"),
        (("entries", "wide", "c0"), [], "node 0: 5 assignments, 3 in its entries"),
    ],
)
def test_a_contradictory_state_is_reported(busy: Kubelet, path: tuple[str, ...], value: Any, detail: str) -> None:
    problem = memory_state_problem(busy, _with(_memory_state(busy), path, value))
    assert problem is not None
    assert problem.detail.startswith(detail)


def test_moved_reserved_memory_is_reported(busy: Kubelet) -> None:
    after = _changed(busy, reservedMemory=(MemoryReservation(1, {"memory": "1Gi"}),))
    problem = memory_state_problem(after, _memory_state(busy))
    assert problem is not None
    assert problem.detail == f"node 0, memory: system reserved {GI}, now 0"


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        (
            [{"numaAffinity": [7], "type": "memory", "size": 1}],
            "the memory assignment uses the NUMA that does not exist",
        ),
        (
            [{"numaAffinity": [0], "type": "hugepages-1Gi", "size": 1}],
            "the memory assignment uses memory resource that does not exist",
        ),
    ],
)
def test_a_block_of_absent_memory_is_refused(busy: Kubelet, entries: list[Any], error: str) -> None:
    problem = memory_state_problem(busy, _with(_memory_state(busy), ("entries", "wide", "c0"), entries))
    assert problem is not None
    assert problem.error == f"[memorymanager] (pod: wide, container: c0) {error}"


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"policyName": 7}', b'{"policyName":"Static","machineState":{"x":{}}}']
)
def test_a_damaged_file_is_refused(busy: Kubelet, text: bytes) -> None:
    problem = memory_state_problem(busy, text)
    assert problem is not None
    assert problem.error == "could not restore state from checkpoint: checkpoint is corrupted"
    broken = cpu_state_problem(busy, text if b"machine" not in text else b'{"data": "{"}')
    assert broken is not None
    assert broken.error == "could not restore state from checkpoint: checkpoint is corrupted"


def test_assignments_need_a_machine() -> None:
    entries = {"p": {"c": [{"numaAffinity": [0], "type": "memory", "size": 1}]}}
    text = json.dumps({"policyName": "Static", "machineState": None, "entries": entries}).encode()
    problem = memory_problem(text, policy="Static", nodes={})
    assert problem is not None
    assert problem.error == "[memorymanager] machine state can not be empty when it has memory assignments"


def test_nodes_that_the_model_omits_may_be_in_the_file() -> None:
    bare = tuple(NumaNode(number, 0) for number in range(1, 34))
    machine = Machine(numa=(*machine_of(4).numa, *bare))
    options = {"max-allowable-numa-nodes": "64"}
    config = KubeletConfiguration(
        topologyManagerPolicy="restricted",
        topologyManagerPolicyOptions=options,
        systemReserved={"memory": "1Gi"},
        memoryManagerPolicy="Static",
        reservedMemory=(MemoryReservation(0, {"memory": "1Gi"}),),
    )
    kubelet = Kubelet(machine, config)
    state = json.loads(_memory_state(kubelet))
    for node in bare:
        state["machineState"][str(node.id)] = {
            "numberOfAssignments": 0,
            "memoryMap": {"memory": msgspec.structs.asdict(_Nothing())},
            "cells": [node.id],
        }
    assert memory_state_problem(kubelet, json.dumps(state).encode()) is None
    assert restart(kubelet, kubelet.emptied(), (), {}).problem is None


def test_a_numa_node_has_no_entry_for_a_page_size_that_it_lacks() -> None:
    kubelet = kubelet_of(machine_of(4, 4, hugepages=[{2048: 512}, {}]))
    assert [[*amounts] for amounts in memory_amounts(kubelet).values()] == [["memory", "hugepages-2Mi"], ["memory"]]


class _Nothing(msgspec.Struct):
    total: int = 0
    systemReserved: int = 0
    allocatable: int = 0
    reserved: int = 0
    free: int = 0
