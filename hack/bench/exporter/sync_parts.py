"""The two halves of a sync that need no kubelet: the scan of /sys, and the object made of what is known."""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Final

from bench.exporter.kubelet import GIB, MACHINE
from bench.figures import Figure
from bench.usage import thread_ms
from sandbox import machines
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter import machine
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.allocations import (
    Allocatable,
    Allocations,
    ContainerAllocation,
    MemoryBlock,
    PodAllocation,
)
from topowise_exporter.publish.topology import Observation, Publishing, build

_ROUNDS: Final = 20
_PODS: Final = 250


def measure(root: Path) -> list[Figure]:
    """CPU time of each; the tree of the machine is written below `root`."""
    sysfs, procfs = machines.write_tree(MACHINE, root)
    read = machine.scan(str(sysfs), str(procfs))
    memory = tuple(MemoryBlock("memory", (node,), 60 * GIB) for node in range(8))
    pods = tuple(
        PodAllocation(
            "ns",
            f"pod-{number}",
            (ContainerAllocation("c", frozenset({number}), (MemoryBlock("memory", (number % 8,), GIB),)),),
        )
        for number in range(_PODS)
    )
    kubelet = KubeletConfiguration(topologyManagerPolicy="single-numa-node", memoryManagerPolicy="Static")
    seen = Observation(read, kubelet, Allocations(Allocatable(frozenset(read.online), memory), pods))
    scans = thread_ms([partial(machine.scan, str(sysfs), str(procfs))] * _ROUNDS)
    builds = thread_ms([partial(build, "n", seen, Publishing(), Exclusions())] * _ROUNDS)
    return [
        Figure(f"scan of /sys, 8 NUMA nodes, {len(read.online)} CPUs, p50", round(statistics.median(scans), 2), "ms"),
        Figure(f"object of 8 NUMA nodes and {_PODS} pods, p50", round(statistics.median(builds), 2), "ms"),
    ]
