"""A cluster of emulated nodes that admit pods as their kubelets would, with the views that schedulers have of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Needs
from topowise_scheduler.engine import Engine
from topowise_scheduler.kubelet import Admission, Kubelet


class Sums(NamedTuple):
    """kube-scheduler's view of nodes: an array of shape (nodes,) per resource, CPUs in milli-CPUs."""

    allocatable: dict[str, NDArray[np.int64]]
    requested: dict[str, NDArray[np.int64]]


class Cluster:
    """Equal nodes, all empty at first. An admitted pod never ends."""

    def __init__(self, empty: Kubelet, count: int) -> None:
        self._kubelets = [empty.fork() for _ in range(count)]
        self.engine = Engine()
        for node, kubelet in enumerate(self._kubelets):
            self.engine.put(str(node), kubelet)
        allocatable = empty.allocatable()
        self.sums = Sums(
            {name: np.full(count, amount, np.int64) for name, amount in allocatable.items()},
            {name: np.zeros(count, np.int64) for name in allocatable},
        )
        self._sent = 0

    def send(self, needs: Needs, node: int) -> Admission:
        """Asks the node's kubelet to admit a new pod, and returns its answer."""
        kubelet = self._kubelets[node]
        self._sent += 1
        admission = kubelet.admit_view(kubelet.view(f"pod-{self._sent}", needs))
        if admission.admitted:
            self.engine.put(str(node), kubelet)
            for name, amount in {**needs.requests, "pods": 1}.items():
                self.sums.requested[name][node] += amount
        return admission

    def share(self, resource: str) -> float:
        """Returns the share of a resource that is in use; 0 if the nodes have none."""
        allocatable = int(self.sums.allocatable[resource].sum()) if resource in self.sums.allocatable else 0
        return int(self.sums.requested[resource].sum()) / allocatable if allocatable else 0.0

    def zones_of(self, admission: Admission) -> int:
        """Returns how many NUMA nodes hold the pod's exclusive CPUs and memory; 0 for a pod without any."""
        numa_cpus = self._kubelets[0].topology.numa_cpus
        zones: set[int] = set()
        for placement in admission.placements.values():
            cpus = placement.cpus or 0
            zones.update(zone for zone, zone_cpus in enumerate(numa_cpus) if cpus & zone_cpus)
            zones.update(zone for block in placement.memory for zone in block.numa)
        return len(zones)
