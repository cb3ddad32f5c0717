"""Eight best-effort nodes at 85 % load with arriving and ending pods: no pod is split while an aligned fit is free.

Every node admits every pod, so only scores avoid nodes that would split a pod. The kubelet models decide the actual
placement; as in kube-scheduler, chance decides among nodes with the best score on the wire.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from sandbox.judging import candidates, rate
from topowise import pods
from topowise_scheduler import strategies
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.engine import Engine
from topowise_scheduler.kubelet import (
    Admission,
    Core,
    Kubelet,
    KubeletConfiguration,
    Machine,
    MemoryReservation,
    NumaNode,
)
from topowise_scheduler.shape import PodRequests

NODES, CPUS, LOAD, ARRIVALS = 8, 16, 0.85, 250
GI = 1 << 30
SIZES = (1, 1, 2, 2, 3, 4, 4, 6, 8, 12)


def kubelet(memory: str) -> Kubelet:
    """Two NUMA nodes of 16 CPUs and 64 GiB for pods."""
    numa = tuple(
        NumaNode(
            id=zone,
            memory=65 * GI,
            cores=tuple(Core(zone, (cpu,)) for cpu in range(zone * (CPUS + 1), (zone + 1) * (CPUS + 1))),
            distances=(10, 21) if zone == 0 else (21, 10),
        )
        for zone in range(2)
    )
    static = memory == "Static"
    configuration = KubeletConfiguration(
        topologyManagerPolicy="best-effort",
        cpuManagerPolicy="static",
        reservedSystemCPUs=f"0,{CPUS + 1}",
        memoryManagerPolicy=memory,
        reservedMemory=tuple(MemoryReservation(zone, {"memory": "1Gi"}) for zone in range(2)) if static else (),
        systemReserved={"memory": "2Gi"},
        evictionHard={},
    )
    return Kubelet(Machine(numa=numa), configuration)


def pod(uid: str, cpus: int) -> pods.Pod:
    limits = pods.Resources(limits={"cpu": str(cpus), "memory": f"{3 * cpus}Gi"})
    return pods.Pod(pods.Metadata(uid=uid), pods.Spec(containers=(pods.Container("c", limits),)))


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
    rng = random.Random(f"{name} {memory}")
    strategy = strategies.make(name, {}, Scoring())
    engine, nodes = Engine(), [kubelet(memory) for _ in range(NODES)]
    for number, node in enumerate(nodes):
        engine.put(str(number), node)
    running: list[tuple[str, int, int]] = []
    tempted = splits = 0
    for number in range(ARRIVALS):
        cpus = rng.choice(SIZES)
        while running and sum(used for _, _, used in running) + cpus > LOAD * NODES * 2 * CPUS:
            uid, at, _ = running.pop(rng.randrange(len(running)))
            assert nodes[at].remove(uid)
            engine.put(str(at), nodes[at])
        incoming = pod(f"p{number}", cpus)
        rated = rate(strategy, candidates(engine, PodRequests(pods.needs(incoming))))
        if not rated.at.size:
            continue
        tempted += len(set(rated.ranks.tolist())) > 1
        levels = rated.levels(10)
        chosen = int(rated.at[rng.choice(np.flatnonzero(levels == levels.max()).tolist())])
        admission = nodes[chosen].admit(incoming)
        assert admission.admitted
        engine.put(str(chosen), nodes[chosen])
        running.append((incoming.metadata.uid, chosen, cpus))
        if len(lies_on(nodes[chosen], admission)) > 1:
            splits += 1
            assert not any(is_aligned(node, pod("other", cpus)) for at, node in enumerate(nodes) if at != chosen)
    # The load is high enough: often only some nodes would split the pod.
    assert tempted > 2 * splits
    assert tempted > ARRIVALS // 10
