"""State files of the kubelet: whose the entries are, and what the dead give back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from topowise import checkpoints
from topowise.errors import SourceError
from topowise_exporter.kubelet import entry_owners
from topowise_exporter.kubelet.allocations import ContainerAllocation, MemoryBlock, PodAllocation
from topowise_exporter.kubelet.state_files import StateFile, parse_cpu_state, parse_memory_state

CPU = b"""{"policyName":"static","defaultCpuSet":"0,7","entries":{
 "live":{"setup":"5-6","main":"1-2"},"init-only":{"setup":"3"},"dead":{"main":"4"}},"checksum":0}"""

MEMORY = b"""{"policyName":"Static","machineState":{
 "0":{"numberOfAssignments":2,"memoryMap":{"memory":{"total":10,"systemReserved":0,"allocatable":8,"reserved":7,"free":1}},
      "cells":[0,1]},
 "1":{"numberOfAssignments":2,"memoryMap":{"memory":{"total":10,"systemReserved":0,"allocatable":8,"reserved":3,"free":5}},
      "cells":[0,1]}},
 "entries":{"live":{"main":[{"numaAffinity":[0,1],"type":"memory","size":4}]},
            "dead":{"main":[{"numaAffinity":[0,1],"type":"memory","size":6}]}},"checksum":0}"""

LIVE = PodAllocation("ns", "p", (ContainerAllocation("main", frozenset({1, 2}), (MemoryBlock("memory", (0, 1), 4),)),))


def test_cpus_of_a_live_pods_finished_init_container_are_found() -> None:
    state = parse_cpu_state(CPU, "x")
    assert state is not None
    assert state.shared == {0, 7}
    live = entry_owners.listed_uids(state, [LIVE])
    assert live == {"live"}
    assert entry_owners.unlisted_cpus(state, [LIVE], live) == {"live": {5, 6}}


def test_a_pod_with_only_leftovers_of_an_init_container_counts_while_it_exists() -> None:
    state = parse_cpu_state(CPU, "x")
    assert state is not None
    assert entry_owners.unlisted_cpus(state, [LIVE], frozenset({"live", "init-only"})) == {
        "live": {5, 6},
        "init-only": {3},
    }


ALL_CPUS = frozenset(range(1, 8))


@pytest.mark.parametrize(
    ("shared", "entries", "pod_entries", "free"),
    [
        ("0,7", {"live": {"main": "1-2", "setup": "5-6"}, "dead": {"main": "3-4"}}, {}, {3, 4, 7}),
        # CPU 2 belonged to a second pod, which has ended.
        ("0,2,7", {"live": {"main": "1-2", "setup": "5-6"}, "dead": {"main": "3-4"}}, {}, {2, 3, 4, 7}),
        # The kubelet will release the second pod.
        ("0,7", {"live": {"main": "1-2", "setup": "5-6"}, "dead": {"main": "2-4"}}, {}, {2, 3, 4, 7}),
        # The kubelet is writing the entry of CPUs 3 and 4.
        ("0,7", {"live": {"main": "1-2", "setup": "5-6"}}, {}, {3, 4, 7}),
        # A restarted kubelet has forgotten CPUs 3 and 4 of the pod.
        ("0,7", {"live": {"main": "1-2"}}, {"live": {"cpuSet": "1-2,5-6"}}, {7}),
        ("0", {"live": {"main": "1-2"}, "dead": {"main": "3"}}, {"dead": {"cpuSet": "3-6"}}, {3, 4, 5, 6}),
    ],
    ids=["alone", "double", "double at an end", "being written", "forgotten", "pod level"],
)
def test_free_cpus_are_the_kubelets_own(
    shared: str, entries: dict[str, Any], pod_entries: dict[str, Any], free: set[int]
) -> None:
    text = {"policyName": "static", "defaultCpuSet": shared, "entries": entries, "podEntries": pod_entries}
    state = checkpoints.cpu_state(json.dumps(text).encode())
    assert entry_owners.free_cpus(state, [LIVE], frozenset({"live"}), ALL_CPUS) == free


def test_a_file_without_the_cpus_that_list_shows_names_no_free_cpus() -> None:
    """The kubelet ended after its answer, and the next kubelet has begun a new file."""
    state = checkpoints.cpu_state(b'{"policyName":"static","defaultCpuSet":"0-7","entries":{}}')
    assert entry_owners.free_cpus(state, [LIVE], frozenset({"live"}), ALL_CPUS) is None
    assert entry_owners.free_cpus(state, [], frozenset(), ALL_CPUS) == ALL_CPUS


def test_allocations_of_dead_pods_are_released_as_the_kubelet_will() -> None:
    state = parse_memory_state(MEMORY, "x")
    assert state is not None
    live = entry_owners.live_memory_holders(state, [LIVE])
    free_memory = entry_owners.exact_memory(state, live)
    # Six bytes go back, from the lower node as much as is reserved there.
    assert free_memory.free == {(0, "memory"): 7, (1, "memory"): 5}
    assert free_memory.assignments == {0: 1, 1: 1}
    assert free_memory.cells == {0: (0, 1), 1: (0, 1)}


def test_nodes_without_assignments_leave_their_group() -> None:
    state = parse_memory_state(MEMORY, "x")
    assert state is not None
    free_memory = entry_owners.exact_memory(state, frozenset())
    assert free_memory.cells == {0: (0,), 1: (1,)}
    assert free_memory.free == {(0, "memory"): 8, (1, "memory"): 8}


@pytest.mark.parametrize("text", [b'{"policyName":"none","defaultCpuSet":""}', b'{"policyName":"None"}'])
def test_a_manager_that_is_off_has_no_state(text: bytes) -> None:
    parse = parse_cpu_state if b"defaultCpuSet" in text else parse_memory_state
    assert parse(text, "x") is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        CPU[:60],
        CPU.replace(b"5-6", b"5-x"),
        MEMORY[:100],
        MEMORY.replace(b'"1":{', b'"one":{', 1),
        b'{"policyName":"\xff","defaultCpuSet":""}',
        b'{"policyName":"\xff","machineState":{}}',
    ],
)
def test_a_half_written_or_foreign_file_is_named(text: bytes) -> None:
    parse = parse_memory_state if b"machineState" in text else parse_cpu_state
    with pytest.raises(SourceError, match="/state"):
        parse(text, "/state")


def test_the_same_bytes_are_the_same_object(tmp_path: Path) -> None:
    path = tmp_path / "cpu_manager_state"
    path.write_bytes(CPU)
    file = StateFile(path, parse_cpu_state)
    first = file.read()
    path.write_bytes(CPU)
    assert file.read() is first
    path.write_bytes(CPU.replace(b"0,7", b"0"))
    assert file.read() is not first
    path.unlink()
    with pytest.raises(SourceError, match="No such file"):
        file.read()


def test_of_two_pods_with_equal_allocations_only_the_listed_pod_is_alive() -> None:
    # Replicas on a node have equal amounts, and the kubelet keeps the dead replica's entry until the next admission.
    text = b"""{"policyName":"Static","machineState":{"0":{"numberOfAssignments":2,"memoryMap":{
     "memory":{"allocatable":8,"reserved":8,"free":0}},"cells":[0]}},
     "entries":{"a":{"main":[{"numaAffinity":[0],"type":"memory","size":4}]},
                "b":{"main":[{"numaAffinity":[0],"type":"memory","size":4}]}},"checksum":0}"""
    state = parse_memory_state(text, "x")
    assert state is not None
    pod = PodAllocation("ns", "r-1", (ContainerAllocation("main", memory=(MemoryBlock("memory", (0,), 4),)),))
    free_memory = entry_owners.exact_memory(state, entry_owners.live_memory_holders(state, [pod]))
    assert free_memory.free == {(0, "memory"): 4}
    twin = PodAllocation("ns", "r-2", pod.containers)
    both = entry_owners.exact_memory(state, entry_owners.live_memory_holders(state, [pod, twin]))
    assert both.free == {(0, "memory"): 0}


WHOLE_CPU = b"""{"policyName":"static","defaultCpuSet":"0","entries":{"u":{"setup":"1","main":"1-2"},"v":{"main":"5"},
 "w":{"main":"7"}},"podEntries":{"u":{"cpuSet":"1-4"},"v":{"cpuSet":"5-6"}},"checksum":0}"""
WHOLE_MEMORY = b"""{"policyName":"Static","machineState":{},"entries":{
 "u":{"main":[{"numaAffinity":[0],"type":"memory","size":4}]},"x":{"main":[{"numaAffinity":[1],"type":"memory","size":5}]},
 "y":{"main":[{"numaAffinity":[1],"type":"memory","size":5}]}},"podEntries":{
 "u":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":9}]},
 "x":{"memoryBlocks":[{"numaAffinity":[1],"type":"memory","size":8}]},
 "y":{"memoryBlocks":[{"numaAffinity":[1],"type":"memory","size":7}]}},"checksum":0}"""


def test_pod_level_allocations_come_from_the_files_where_list_lacks_them() -> None:
    cpu, memory = parse_cpu_state(WHOLE_CPU, "x"), parse_memory_state(WHOLE_MEMORY, "x")

    def listed(name: str, *cpus: int, memory: tuple[MemoryBlock, ...] = ()) -> PodAllocation:
        return PodAllocation("ns", name, (ContainerAllocation("main", frozenset(cpus), memory),))

    block, alike = MemoryBlock("memory", (0,), 4), (MemoryBlock("memory", (1,), 5),)
    pods = (listed("u", 1, 2, memory=(block,)), listed("v", 5), listed("w", 7))
    pods += (listed("x", memory=alike), listed("y", memory=alike), PodAllocation("ns", "idle"))
    whole = entry_owners.WholePods()
    owned = whole.of(pods, cpu, memory)
    assert [set(pod.own_cpus) for pod in owned] == [{1, 2, 3, 4}, {5, 6}, set(), set(), set(), set()]
    sizes = [[block.size for block in pod.own_memory] for pod in owned]
    assert (sizes[:3], sorted(sizes[3:5]), sizes[5]) == ([[9], [], []], [[7], [8]], [])
    assert [pod.containers for pod in owned] == [pod.containers for pod in pods]
    assert whole.of(pods, cpu, memory) is owned
    # A kubelet that lists pod-level resources is trusted, and without such pods the same objects are returned.
    assert whole.of(owned, cpu, memory) is owned
    assert whole.of(pods, parse_cpu_state(CPU, "x"), None) is pods


def memory_of(number: int, reserved: int, entries: str, more: str = "") -> bytes:
    tables = f'"memory":{{"allocatable":100,"reserved":{reserved},"free":{100 - reserved}}}'
    nodes = f'"0":{{"numberOfAssignments":{number},"memoryMap":{{{tables}}},"cells":[0]}}'
    text = f'{{"policyName":"Static","machineState":{{{nodes}}},"entries":{{{entries}}}{more},"checksum":0}}'
    return text.encode()


LISTED = PodAllocation("ns", "p", (ContainerAllocation("c", memory=(MemoryBlock("memory", (0,), 40),)),))
C = '{"c":[{"numaAffinity":[0],"type":"memory","size":40}]}'
POD_ENTRIES = ',"podEntries":{"v":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":30}]}}'
# Both containers share the pod's memory, so each entry has all of it (policy_static.go, podSharedPoolBlocks).
SHARED = '{"a":[{"numaAffinity":[0],"type":"memory","size":30}],"b":[{"numaAffinity":[0],"type":"memory","size":30}]}'
LIVE_POD = POD_ENTRIES.replace("30", "40")
FORTY, TEN = SHARED.replace('"a"', '"c"').replace("30", "40"), C.replace("40", "10").replace('"c"', '"x"')
REUSED = '{"i":[{"numaAffinity":[0],"type":"memory","size":10}],"c":[{"numaAffinity":[0],"type":"memory","size":6}]}'


@pytest.mark.parametrize(
    ("text", "free", "assignments"),
    [
        pytest.param(memory_of(1, 40, f'"u":{C}'), 60, 1, id="all is written"),
        pytest.param(memory_of(2, 70, f'"u":{C}'), 60, 1, id="the tables have a block, its entry is not written yet"),
        pytest.param(memory_of(3, 50, f'"u":{C},"v":{REUSED}'), 60, 1, id="an app container is booked on its init's"),
        pytest.param(memory_of(2, 70, f'"u":{C}', POD_ENTRIES), 30, 2, id="a pod has memory as a whole"),
        pytest.param(memory_of(2, 70, f'"u":{C},"v":{SHARED}', POD_ENTRIES), 60, 1, id="a pod-level pod is dead"),
        pytest.param(memory_of(2, 50, f'"u":{TEN},"v":{FORTY}', LIVE_POD), 60, 1, id="a pod-level pod is live"),
    ],
)
def test_a_half_written_entry_has_no_pod_and_takes_nothing_from_other_pods(
    text: bytes, free: int, assignments: int
) -> None:
    state = parse_memory_state(text, "x")
    assert state is not None
    free_memory = entry_owners.exact_memory(state, entry_owners.live_memory_holders(state, [LISTED]))
    assert free_memory.free == {(0, "memory"): free}
    assert free_memory.assignments == {0: assignments}


def test_cpu_state_up_to_1_17_has_containers_without_pods() -> None:
    """Later forms are among the recorded files (test_state_files.py)."""
    state = parse_cpu_state(b'{"policyName":"static","defaultCpuSet":"0","entries":{"d3adb33f":"1-2"}}', "x")
    assert state is not None
    assert (state.shared, state.holders) == (frozenset({0}), {"": {"d3adb33f": {1, 2}}})
