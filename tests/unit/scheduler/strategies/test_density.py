"""How many pods a small cluster admits with each scoring strategy; the kubelet model decides each admission.

All pods together request 95 % of the CPUs, so the number of refused pods is the cost of fragmentation.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from sandbox.judging import rate
from topowise import pods
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.engine import AlignedContainer, Candidates
from topowise_scheduler.kubelet import (
    Core,
    Device,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    Machine,
    MemoryReservation,
    NumaNode,
)
from topowise_scheduler.kubelet.admission import Admission
from topowise_scheduler.strategies import make

GI = 1 << 30
GPU = "example.com/gpu"

Amounts = Mapping[str, int]

# CPUs, GiB and GPUs of a pod, and the frequency of such pods.
Shapes = Sequence[tuple[tuple[int, int, int], int]]
SMALL: Shapes = [((1, 4, 0), 20), ((2, 8, 0), 20), ((4, 8, 0), 20), ((8, 32, 0), 15), ((16, 64, 0), 8)]
WITH_LARGE: Shapes = [*SMALL, ((12, 24, 0), 6), ((24, 96, 0), 8), ((30, 100, 0), 8)]
WITH_GPUS: Shapes = [*SMALL, ((14, 56, 1), 25)]


def kubelet(gpus: int) -> Kubelet:
    """Two sockets, each with 32 CPUs, 129 GiB (1 GiB reserved) and `gpus` GPUs."""
    numa = tuple(
        NumaNode(id=node, memory=129 * GI, cores=tuple(Core(node, (cpu,)) for cpu in range(32 * node, 32 * node + 32)))
        for node in range(2)
    )
    devices = tuple(Device(f"gpu-{number}", (number % 2,)) for number in range(2 * gpus))
    configuration = KubeletConfiguration(
        cpuManagerPolicy="static",
        cpuManagerPolicyOptions={"strict-cpu-reservation": "true"},
        reservedSystemCPUs="0",
        memoryManagerPolicy="Static",
        systemReserved={"cpu": "1", "memory": "2Gi"},
        reservedMemory=tuple(MemoryReservation(node, {"memory": "1Gi"}) for node in range(2)),
        topologyManagerPolicy="single-numa-node",
    )
    plugins = (DevicePlugin(GPU, devices),) if gpus else ()
    return Kubelet(Machine(numa=numa, devices=plugins), configuration, predicates=False)


def arrivals(mix: Shapes, seed: int, cpus: float) -> list[Amounts]:
    """Pods in random order that request about `cpus` CPUs in sum."""
    rng = random.Random(seed)
    shapes, frequency = zip(*mix, strict=True)
    requests: list[Amounts] = []
    while cpus > 0:
        ((cpu, memory, gpu),) = rng.choices(shapes, frequency)
        requests.append({"cpu": cpu, "memory": memory * GI} | ({GPU: gpu} if gpu else {}))
        cpus -= cpu
    return requests


def pod(uid: str, amounts: Amounts) -> pods.Pod:
    limits = {name: str(amount) for name, amount in amounts.items()}
    return pods.Pod(
        metadata=pods.Metadata(name=uid, namespace="default", uid=uid),
        spec=pods.Spec(containers=(pods.Container("c", pods.Resources(limits=limits)),)),
    )


def free(node: Kubelet) -> dict[str, list[int]]:
    """Free amounts of each NUMA node, by resource."""
    assert node.cpu is not None and node.memory is not None
    available = node.cpu.available
    amounts = {
        "cpu": [(cpus & available).bit_count() for cpus in node.topology.numa_cpus],
        "memory": list(node.memory.tables.free["memory"]),
        GPU: [0, 0],
    }
    for resource, table in node.devices.tables.items():
        allocated = node.devices.allocated[resource]
        amounts[resource] = [(near & ~allocated).bit_count() for near in table.near]
    return amounts


def candidates(
    nodes: Sequence[Kubelet], whole: Sequence[dict[str, list[int]]], admissions: Sequence[Admission], request: Amounts
) -> Candidates:
    def table(of: Sequence[dict[str, list[int]]], name: str) -> np.ndarray:
        return np.array([node[name] for node in of], np.int64).T.copy()

    now = [free(node) for node in nodes]
    masks = [sum(1 << numa for numa in admission.placements["c"].numa or ()) for admission in admissions]
    return Candidates(
        rows=np.arange(len(nodes), dtype=np.int32),
        zones=2,
        distances=np.repeat(np.array([[10, 21], [21, 10]], np.int32)[:, :, None], len(nodes), axis=2),
        allocatable={name: table(whole, name) for name in whole[0]},
        available={name: table(now, name) for name in now[0]},
        containers=(AlignedContainer("c", "app", request),),
        placed=np.array([masks], np.int64),
        aligned=np.ones((1, len(masks)), np.bool_),
    )


def placed(name: str, mix: Shapes, gpus: Sequence[int], seed: int) -> int:
    """Number of pods placed. As in kube-scheduler, chance decides among nodes with the best score on the wire."""
    nodes = [kubelet(number) for number in gpus]
    whole = [free(node) for node in nodes]
    strategy = make(name, {"cpu": 1, "memory": 1}, Scoring())
    rng = random.Random(seed)
    count = 0
    for number, amounts in enumerate(arrivals(mix, seed, 0.95 * sum(sum(node["cpu"]) for node in whole))):
        uid = f"pod-{number}"
        admissions = [node.fork().admit(pod(uid, amounts)) for node in nodes]
        fit = [at for at, admission in enumerate(admissions) if admission.admitted]
        if not fit:
            continue
        fitting = candidates(
            [nodes[at] for at in fit], [whole[at] for at in fit], [admissions[at] for at in fit], amounts
        )
        scores = rate(strategy, [(np.arange(len(fit)), fitting)]).levels(10)
        chosen = fit[rng.choice(np.flatnonzero(scores == scores.max()).tolist())]
        assert nodes[chosen].admit(pod(uid, amounts)).admitted
        count += 1
    return count


@pytest.mark.parametrize(
    ("mix", "gpus"), [(WITH_LARGE, [0] * 8), (WITH_GPUS, [0, 2] * 4)], ids=["large-pods", "gpus-in-half-of-the-nodes"]
)
def test_tight_fit_places_at_least_as_many_pods(mix: Shapes, gpus: Sequence[int]) -> None:
    tight, least, most = [
        sum(placed(name, mix, gpus, seed) for seed in range(8))
        for name in ("TightFit", "LeastAllocated", "MostAllocated")
    ]
    assert tight >= most
    assert tight > least
