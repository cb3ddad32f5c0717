"""How many pods a small cluster takes, decided node by node by the kubelet's model, by who chooses among those
that fit.

All pods together ask for 95 % of the CPUs, so how many are refused is what fragmentation costs.
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

# CPUs, GiB and GPUs, and how often they come.
Shapes = Sequence[tuple[tuple[int, int, int], int]]
SMALL: Shapes = [((1, 4, 0), 20), ((2, 8, 0), 20), ((4, 8, 0), 20), ((8, 32, 0), 15), ((16, 64, 0), 8)]
WITH_LARGE: Shapes = [*SMALL, ((12, 24, 0), 6), ((24, 96, 0), 8), ((30, 100, 0), 8)]
WITH_GPUS: Shapes = [*SMALL, ((14, 56, 1), 25)]


def kubelet(gpus: int) -> Kubelet:
    """Two sockets of 32 CPUs and 129 GiB, one of which is reserved, with these GPUs each."""
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
    """Pods in random order, for as many CPUs."""
    rng = random.Random(seed)
    shapes, frequency = zip(*mix, strict=True)
    found: list[Amounts] = []
    while cpus > 0:
        ((cpu, memory, gpu),) = rng.choices(shapes, frequency)
        found.append({"cpu": cpu, "memory": memory * GI} | ({GPU: gpu} if gpu else {}))
        cpus -= cpu
    return found


def pod(uid: str, amounts: Amounts) -> pods.Pod:
    limits = {name: str(amount) for name, amount in amounts.items()}
    return pods.Pod(
        metadata=pods.Metadata(name=uid, namespace="default", uid=uid),
        spec=pods.Spec(containers=(pods.Container("c", pods.Resources(limits=limits)),)),
    )


def free(node: Kubelet) -> dict[str, list[int]]:
    """What each NUMA node has, by resource."""
    assert node.cpu is not None and node.memory is not None
    available = node.cpu.available
    found = {
        "cpu": [(cpus & available).bit_count() for cpus in node.topology.numa_cpus],
        "memory": list(node.memory.tables.free["memory"]),
        GPU: [0, 0],
    }
    for resource, table in node.devices.tables.items():
        held = node.devices.allocated[resource]
        found[resource] = [(near & ~held).bit_count() for near in table.near]
    return found


def candidates(
    nodes: Sequence[Kubelet], whole: Sequence[dict[str, list[int]]], shown: Sequence[Admission], asked: Amounts
) -> Candidates:
    def table(of: Sequence[dict[str, list[int]]], name: str) -> np.ndarray:
        return np.array([node[name] for node in of], np.int64).T.copy()

    now = [free(node) for node in nodes]
    masks = [sum(1 << numa for numa in one.placements["c"].numa or ()) for one in shown]
    return Candidates(
        rows=np.arange(len(nodes), dtype=np.int32),
        zones=2,
        distances=np.repeat(np.array([[10, 21], [21, 10]], np.int32)[:, :, None], len(nodes), axis=2),
        allocatable={name: table(whole, name) for name in whole[0]},
        available={name: table(now, name) for name in now[0]},
        containers=(AlignedContainer("c", "app", asked),),
        placed=np.array([masks], np.int64),
        aligned=np.ones((1, len(masks)), np.bool_),
    )


def placed(name: str, mix: Shapes, gpus: Sequence[int], seed: int) -> int:
    """How many of the pods find a node. As in kube-scheduler, chance decides among the best scores on the wire."""
    nodes = [kubelet(number) for number in gpus]
    whole = [free(node) for node in nodes]
    strategy = make(name, {"cpu": 1, "memory": 1}, Scoring())
    rng = random.Random(seed)
    count = 0
    for number, amounts in enumerate(arrivals(mix, seed, 0.95 * sum(sum(node["cpu"]) for node in whole))):
        uid = f"pod-{number}"
        shown = [node.fork().admit(pod(uid, amounts)) for node in nodes]
        fit = [place for place, one in enumerate(shown) if one.admitted]
        if not fit:
            continue
        asked = candidates(
            [nodes[place] for place in fit], [whole[place] for place in fit], [shown[place] for place in fit], amounts
        )
        scores = rate(strategy, [(np.arange(len(fit)), asked)]).levels(10)
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
