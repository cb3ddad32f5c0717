"""One look of the exporter without the kubelet's socket: /sys, accounting, the object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sandbox import machines
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter import machine
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.model import Allocatable, Allocations, ContainerAllocation, MemoryBlock, PodAllocation
from topowise_exporter.publish.topology import Observation, Publishing, build

GIB = 1 << 30
EIGHT = machines.Machine(
    nodes=tuple(machines.Node(number, 64 * GIB, socket=number // 4, cores=16) for number in range(8)),
    distances=tuple(tuple(10 if a == b else 12 if a // 4 == b // 4 else 21 for b in range(8)) for a in range(8)),
)


def test_scan(benchmark: Any, tmp_path: Path) -> None:
    sysfs, procfs = machines.write_tree(EIGHT, tmp_path)
    read = benchmark(machine.scan, str(sysfs), str(procfs))
    assert len(read.nodes) == 8


def test_build_with_250_pods(benchmark: Any, tmp_path: Path) -> None:
    sysfs, procfs = machines.write_tree(EIGHT, tmp_path)
    read = machine.scan(str(sysfs), str(procfs))
    memory = tuple(MemoryBlock("memory", (number,), 60 * GIB) for number in range(8))
    pods = tuple(
        PodAllocation(
            "ns",
            f"pod-{number}",
            (ContainerAllocation("c", frozenset({number}), (MemoryBlock("memory", (number % 8,), GIB),)),),
        )
        for number in range(250)
    )
    kubelet = KubeletConfiguration(topologyManagerPolicy="single-numa-node", memoryManagerPolicy="Static")
    seen = Observation(read, kubelet, Allocations(Allocatable(frozenset(read.online), memory), pods))
    made = benchmark(build, "n", seen, Publishing(), Exclusions())
    assert len(made.topology.zones or ()) == 8
    assert not made.problems
