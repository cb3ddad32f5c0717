"""Why a pod is not near its claimed devices: what was free on the nodes beside all other pods.

Pure. kube-scheduler's allocator takes the first free devices of a node in the order of its ResourceSlice, all of them
on the same NUMA node. So the state decides which NUMA node the devices of the next claim are on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

ALIGNED: Final = "aligned"
NOWHERE: Final = "apart: on no node the next devices had free CPUs beside them"
ELSEWHERE: Final = "apart: no CPUs beside its devices, on another node the next devices had CPUs"
LOWEST: Final = "apart: CPUs were free beside its devices, the kubelet took a lower NUMA node"
OTHER: Final = "apart: CPUs were free beside its devices, the kubelet took a higher NUMA node"
CAUSES: Final = (NOWHERE, ELSEWHERE, LOWEST, OTHER)


class Device(NamedTuple):
    """A device of a ResourceSlice and its NUMA node."""

    name: str
    numa: int


class Seen(NamedTuple):
    """A running pod: its number of exclusive CPUs by NUMA node, the NUMA nodes of its memory, its claimed devices, and
    the NUMA nodes of its prediction."""

    node: str
    cpus: Mapping[int, int]
    memory: frozenset[int]
    devices: frozenset[Device]
    predicted: frozenset[int]

    @property
    def placed(self) -> frozenset[int]:
        """NUMA nodes of its CPUs and memory."""
        return frozenset(self.cpus) | self.memory

    @property
    def near(self) -> frozenset[int]:
        """NUMA nodes of its devices."""
        return frozenset(device.numa for device in self.devices)

    @property
    def is_aligned(self) -> bool:
        return self.placed <= self.near


class Nodes(NamedTuple):
    """The CPUs that pods can have by NUMA node, and the devices in the order of the slice, by node."""

    cpus: Mapping[str, Mapping[int, int]]
    devices: Mapping[str, Sequence[Device]]

    def free(self, node: str, running: Mapping[str, Seen]) -> dict[int, int]:
        """Returns the number of free CPUs by NUMA node."""
        there = [pod for pod in running.values() if pod.node == node]
        return {numa: count - sum(pod.cpus.get(numa, 0) for pod in there) for numa, count in self.cpus[node].items()}

    def next_numa(self, node: str, count: int, running: Mapping[str, Seen]) -> int | None:
        """Returns the NUMA node of the devices that a claim for so many devices of a NUMA node gets, None if it gets
        none."""
        taken = {device for pod in running.values() if pod.node == node for device in pod.devices}
        free = [device.numa for device in self.devices[node] if device not in taken]
        return next((numa for numa in free if free.count(numa) >= count), None)

    def cause(self, pod: Seen, running: Mapping[str, Seen]) -> str:
        """Returns `ALIGNED`, or why the pod is not near its devices; `running` are all pods that may precede it."""
        if pod.is_aligned:
            return ALIGNED
        wanted = sum(pod.cpus.values())
        free = self.free(pod.node, running)
        if any(free[numa] >= wanted for numa in pod.near):
            return LOWEST if min(pod.placed) < min(pod.near) else OTHER
        for node in self.cpus:
            numa = self.next_numa(node, len(pod.devices), running)
            if numa is not None and self.free(node, running)[numa] >= wanted:
                return ELSEWHERE
        return NOWHERE

    def lowest(self, pod: Seen, running: Mapping[str, Seen]) -> int | None:
        """Returns the lowest NUMA node of the pod's node with room for its CPUs."""
        wanted = sum(pod.cpus.values())
        return next((numa for numa, free in sorted(self.free(pod.node, running).items()) if free >= wanted), None)
