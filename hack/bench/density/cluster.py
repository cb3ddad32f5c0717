"""Nodes that pods are put on, as their kubelets would: in one hand what each scheduler may look at."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Needs
from topowise_scheduler.engine import Engine
from topowise_scheduler.kubelet import Admission, Kubelet


class Sums(NamedTuple):
    """What kube-scheduler knows of nodes: (nodes,) by resource, CPUs in thousandths."""

    allocatable: dict[str, NDArray[np.int64]]
    requested: dict[str, NDArray[np.int64]]


class Cluster:
    """Equal nodes, all empty at first. Pods come, and stay until they are removed."""

    def __init__(self, empty: Kubelet, count: int) -> None:
        self._kubelets = [empty.fork() for _ in range(count)]
        self.engine = Engine()
        for node, kubelet in enumerate(self._kubelets):
            self.engine.put(str(node), kubelet)
        has = empty.allocatable()
        self.sums = Sums(
            {name: np.full(count, amount, np.int64) for name, amount in has.items()},
            {name: np.zeros(count, np.int64) for name in has},
        )
        self._number = 0
        self._running: dict[str, tuple[Needs, int]] = {}

    @property
    def kubelets(self) -> dict[int, Kubelet]:
        """The nodes themselves, for whoever may look at all of it."""
        return dict(enumerate(self._kubelets))

    def __len__(self) -> int:
        return len(self._kubelets)

    def send(self, needs: Needs, node: int, uid: str = "") -> Admission:
        """The kubelet of the node decides; what it admits stays. Only who names a pod can remove it."""
        kubelet = self._kubelets[node]
        self._number += 1
        uid = uid or f"pod-{self._number}"
        admission = kubelet.admit_view(kubelet.view(uid, needs))
        if admission.admitted:
            self._running[uid] = needs, node
            self._changed(needs, node, 1)
        return admission

    def remove(self, uid: str) -> None:
        """A pod that runs has ended."""
        needs, node = self._running.pop(uid)
        self._kubelets[node].remove(uid)
        self._changed(needs, node, -1)

    def share(self, resource: str) -> float:
        """Of a resource in use; 0 where the nodes have none."""
        has = int(self.sums.allocatable[resource].sum()) if resource in self.sums.allocatable else 0
        return int(self.sums.requested[resource].sum()) / has if has else 0.0

    def zones_of(self, admission: Admission) -> int:
        """On how many NUMA nodes the pod's CPUs and memory lie; 0 for one that has none of its own."""
        numa_cpus = self._kubelets[0].topology.numa_cpus
        found: set[int] = set()
        for placed in admission.placements.values():
            cpus = placed.cpus or 0
            found.update(zone for zone, mine in enumerate(numa_cpus) if cpus & mine)
            found.update(zone for block in placed.memory for zone in block.numa)
        return len(found)

    def _changed(self, needs: Needs, node: int, pods: int) -> None:
        self.engine.put(str(node), self._kubelets[node])
        for name, amount in {**needs.requests, "pods": 1}.items():
            self.sums.requested[name][node] += pods * amount
