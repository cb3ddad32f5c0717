"""Small clusters that each strategy fills; the kubelet model decides each admission.

Chance decides among the nodes with the best score on the wire, as in kube-scheduler.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from examples import examples
from sandbox.judging import candidates, rate
from topowise import pods
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.kubelet import (
    Admission,
    Core,
    Device,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    Machine,
    MemoryReservation,
    NumaNode,
)
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.engine import Engine

GI = 1 << 30
GPU = "example.com/gpu"


def kubelet(cpus: int, gib: int, policy: str, memory: str = "Static", gpus: int = 0) -> Kubelet:
    """Two NUMA nodes with these amounts for pods; a CPU and a GiB more of each are the system's."""
    numa = tuple(
        NumaNode(
            id=zone,
            memory=(gib + 1) * GI,
            cores=tuple(Core(zone, (cpu,)) for cpu in range(zone * (cpus + 1), (zone + 1) * (cpus + 1))),
            distances=(10, 21) if zone == 0 else (21, 10),
        )
        for zone in range(2)
    )
    static = memory == "Static"
    configuration = KubeletConfiguration(
        topologyManagerPolicy=policy,
        cpuManagerPolicy="static",
        reservedSystemCPUs=f"0,{cpus + 1}",
        memoryManagerPolicy=memory,
        reservedMemory=tuple(MemoryReservation(zone, {"memory": "1Gi"}) for zone in range(2)) if static else (),
        systemReserved={"memory": "2Gi"},
        evictionHard={},
    )
    devices = tuple(Device(f"gpu-{number}", (number % 2,)) for number in range(2 * gpus))
    return Kubelet(Machine(numa=numa, devices=(DevicePlugin(GPU, devices),) if gpus else ()), configuration)


def pod(uid: str, cpus: int, gib: int, gpus: int = 0) -> pods.Pod:
    limits: pods.Quantities = {"cpu": str(cpus), "memory": f"{gib}Gi", **({GPU: str(gpus)} if gpus else {})}
    containers = (pods.Container("c", pods.Resources(limits=limits)),)
    return pods.Pod(pods.Metadata(uid=uid), pods.Spec(containers=containers))


class Cluster:
    """Nodes that a strategy fills."""

    def __init__(self, name: str, nodes: Sequence[Kubelet], rng: random.Random) -> None:
        self.strategy, self.nodes, self._rng = strategies.make(name, {}, Scoring()), nodes, rng
        self._engine = Engine()
        self.tempted = 0
        """How often the strategy had to choose between ranks."""
        for at in range(len(nodes)):
            self._changed(at)

    def _changed(self, at: int) -> None:
        self._engine.put(str(at), self.nodes[at])

    def place(self, incoming: pods.Pod) -> tuple[int, Admission] | None:
        """Returns the chosen node and its admission, None if the pod fits nowhere."""
        rated = rate(self.strategy, candidates(self._engine, PodRequests(pods.needs(incoming))))
        if not rated.at.size:
            return None
        self.tempted += len(set(rated.ranks.tolist())) > 1
        levels = rated.levels(10)
        chosen = int(rated.at[self._rng.choice(np.flatnonzero(levels == levels.max()).tolist())])
        admission = self.nodes[chosen].admit(incoming)
        assert admission.admitted
        self._changed(chosen)
        return chosen, admission

    def remove(self, uid: str, at: int) -> None:
        """A pod ends."""
        assert self.nodes[at].remove(uid)
        self._changed(at)


# CPUs, GiB and GPUs of a pod, and the frequency of such pods.
Shapes = Sequence[tuple[tuple[int, int, int], int]]
SMALL: Shapes = [((1, 4, 0), 20), ((2, 8, 0), 20), ((4, 8, 0), 20), ((8, 32, 0), 15), ((16, 64, 0), 8)]
WITH_LARGE: Shapes = [*SMALL, ((12, 24, 0), 6), ((24, 96, 0), 8), ((30, 100, 0), 8)]
WITH_GPUS: Shapes = [*SMALL, ((14, 56, 1), 25)]


def placed(name: str, mix: Shapes, gpus: Sequence[int], seed: int) -> int:
    """Returns how many pods are placed that request about 95 % of the CPUs in sum."""
    rng, shapes, frequency = random.Random(seed), *zip(*mix, strict=True)
    cluster = Cluster(name, [kubelet(32, 128, "single-numa-node", gpus=number) for number in gpus], random.Random(seed))
    left, count, number = 0.95 * 64 * len(gpus), 0, 0
    while left > 0:
        ((cpus, gib, of_gpus),) = rng.choices(shapes, frequency)
        count += cluster.place(pod(f"p{number}", cpus, gib, of_gpus)) is not None
        left, number = left - cpus, number + 1
    return count


@pytest.mark.parametrize(
    ("mix", "gpus"), [(WITH_LARGE, [0] * 8), (WITH_GPUS, [0, 2] * 4)], ids=["large-pods", "gpus-in-half-of-the-nodes"]
)
def test_tight_fit_places_at_least_as_many_pods(mix: Shapes, gpus: Sequence[int]) -> None:
    """The number of refused pods is the cost of fragmentation."""
    tight, least, most = [
        sum(placed(name, mix, gpus, seed) for seed in range(examples(3)))
        for name in ("TightFit", "LeastAllocated", "MostAllocated")
    ]
    assert tight >= most
    assert tight > least


NODES, CPUS, LOAD, ARRIVALS = 8, 16, 0.85, examples(120)
SIZES = (1, 1, 2, 2, 3, 4, 4, 6, 8, 12)


def lies_on(node: Kubelet, admission: Admission) -> set[int]:
    """NUMA nodes of the allocated CPUs and memory, which may differ from the hint."""
    placement = admission.placements["c"]
    cpus = {zone for zone, zone_cpus in enumerate(node.topology.numa_cpus) if (placement.cpus or 0) & zone_cpus}
    return cpus.union(*(block.numa for block in placement.memory))


def is_aligned(node: Kubelet, candidate: pods.Pod) -> bool:
    trial = node.fork()
    admission = trial.admit(candidate)
    return admission.admitted and len(lies_on(trial, admission)) == 1


@pytest.mark.parametrize("memory", ["None", "Static"])
@pytest.mark.parametrize("name", strategies.NAMES)
def test_no_pod_is_split_while_an_aligned_fit_is_free(name: str, memory: str) -> None:
    """Every best-effort node admits every pod, at 85 % load with arriving and ending pods, so only scores avoid nodes
    that would split a pod."""
    rng = random.Random(f"{name} {memory}")
    cluster = Cluster(name, [kubelet(CPUS, 64, "best-effort", memory) for _ in range(NODES)], rng)
    running: list[tuple[str, int, int]] = []
    splits = 0
    for number in range(ARRIVALS):
        cpus = rng.choice(SIZES)
        while running and sum(used for _, _, used in running) + cpus > LOAD * NODES * 2 * CPUS:
            uid, at, _ = running.pop(rng.randrange(len(running)))
            cluster.remove(uid, at)
        incoming = pod(f"p{number}", cpus, 3 * cpus)
        result = cluster.place(incoming)
        if result is None:
            continue
        chosen, admission = result
        running.append((incoming.metadata.uid, chosen, cpus))
        if len(lies_on(cluster.nodes[chosen], admission)) > 1:
            splits += 1
            others = [node for at, node in enumerate(cluster.nodes) if at != chosen]
            assert not any(is_aligned(node, pod("other", cpus, 3 * cpus)) for node in others)
    # The load is high enough: often only some nodes would split the pod.
    assert cluster.tempted > 2 * splits
    assert cluster.tempted > ARRIVALS // 15
