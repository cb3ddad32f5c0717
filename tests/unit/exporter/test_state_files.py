"""State files as kubelets of several versions write them (state_files/README.md), read by who reads them here."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from topowise import checkpoints
from topowise.start_check import MemoryAmounts, cpu_problem, memory_problem
from topowise_exporter.kubelet import device_checkpoint, entry_owners
from topowise_exporter.kubelet.allocations import Device, MemoryBlock
from topowise_exporter.kubelet.state_files import parse_cpu_state, parse_memory_state

FILES = Path(__file__).parent / "state_files"
GI = 1 << 30

PLAIN = ("1.36.2", "1.37")
POD_LEVEL = ("pod-level-1.36.2", "pod-level-1.37")
SETUP, MAIN, WHOLE = (
    "9a0e6c55-0b7f-4f0e-8a3c-5d4f6b7c8d02",
    "2f4dd3a4-4a8b-4a53-9f6e-0c8a2d1c6a01",
    "c1b7a9d0-7777-4c3b-b0de-1f2e3d4c5b03",
)
NODES = {
    0: {"memory": MemoryAmounts(8 * GI, GI, 7 * GI), "hugepages-2Mi": MemoryAmounts(GI, 0, GI)},
    1: {"memory": MemoryAmounts(8 * GI, 0, 8 * GI), "hugepages-2Mi": MemoryAmounts(GI, 0, GI)},
}


def text(name: str) -> bytes:
    return (FILES / f"{name}.json").read_bytes()


@pytest.mark.parametrize("version", PLAIN + POD_LEVEL)
def test_the_cpu_managers_state_is_the_same_in_every_form(version: str) -> None:
    state = parse_cpu_state(text(f"cpu-{version}"), "file")
    assert state is not None
    assert state.shared == {0, 1, 7, 15}
    assert state.holders[MAIN] == {"setup": {2, 3}, "main": {2, 3, 10, 11}}
    assert state.holders[SETUP] == {"main": {4}}
    assert state.holders.get(WHOLE) == (
        {"exclusive": {5, 13}, "rest": {6, 14}} if version.startswith("pod-level") else None
    )


@pytest.mark.parametrize("version", POD_LEVEL)
def test_what_a_pod_holds_as_a_whole_is_read(version: str) -> None:
    assert checkpoints.cpu_state(text(f"cpu-{version}")).pods == {WHOLE: {5, 6, 13, 14}}
    (block,) = checkpoints.memory_state(text(f"memory-{version}")).pods[WHOLE]
    assert block == MemoryBlock("memory", (0, 1), 2 * GI)


@pytest.mark.parametrize("version", PLAIN + POD_LEVEL)
def test_the_memory_managers_state_is_the_same_in_every_form(version: str) -> None:
    state = parse_memory_state(text(f"memory-{version}"), "file")
    assert state is not None
    assert state.holders[MAIN] == {
        "main": (MemoryBlock("memory", (0, 1), 10 * GI), MemoryBlock("hugepages-2Mi", (0, 1), GI // 2))
    }
    assert bool(state.pods) is version.startswith("pod-level")
    free = entry_owners.exact_memory(state, frozenset((MAIN, WHOLE)))
    assert free.cells == {0: (0, 1), 1: (0, 1)}
    assert free.free[0, "memory"] == 0
    assert free.free[1, "memory"] == (3 if version.startswith("pod-level") else 5) * GI


def test_the_device_managers_state_is_read() -> None:
    state = device_checkpoint.parse(text("devices-1.36.2"), "file")
    assert state.holders == {
        MAIN: {"main": (Device("example.com/gpu", "gpu-0", (0,)), Device("example.com/gpu", "gpu-1", (0, 1)))},
        SETUP: {"setup": (Device("example.com/fpga", "fpga-7", ()),)},
    }
    assert state.registered.keys() == {"example.com/gpu", "example.com/fpga"}


@pytest.mark.parametrize("version", PLAIN + POD_LEVEL)
def test_a_kubelet_starts_again_on_what_it_wrote(version: str) -> None:
    cpus = frozenset(range(16)) - (frozenset() if version.startswith("pod-level") else {5, 6, 13, 14})
    cpus -= {8, 9, 12}
    assert cpu_problem(text(f"cpu-{version}"), policy="static", cpus=cpus, reserved=frozenset({0})) is None
    assert memory_problem(text(f"memory-{version}"), policy="Static", nodes=NODES) is None


@pytest.mark.parametrize("version", POD_LEVEL)
def test_what_a_pod_holds_as_a_whole_is_missed_too(version: str) -> None:
    without = {node: {"memory": types["memory"]} for node, types in NODES.items()}
    problem = memory_problem(text(f"memory-{version}"), policy="Static", nodes=without)
    assert problem is not None
    assert problem.detail == "hugepages-2Mi"
    problem = memory_problem(text(f"memory-{version}"), policy="Static", nodes={0: NODES[0]})
    assert problem is not None
    assert "the NUMA that does not exist" in problem.error


@pytest.mark.parametrize("name", ["cpu-1.37", "memory-1.37"])
def test_since_1_37_only_the_text_within_counts(name: str) -> None:
    """The fields beside it are for older kubelets."""
    parse = parse_cpu_state if name.startswith("cpu") else parse_memory_state
    whole = msgspec.json.decode(text(name))
    assert parse(msgspec.json.encode(whole | {"policyName": "none", "checksum": 7}), "file") is not None
