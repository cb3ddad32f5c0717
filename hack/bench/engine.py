"""The engine: one pod against 5,000 loaded nodes of 8 NUMA nodes and 5 resources, beside a loop over the model.

Cold is a shape of pod never asked before, with the counts of all nodes in place. Times are CPU time of the thread: the
engine waits for nothing, and so a busy machine does not show. A few hundred nodes are loaded by the model itself and
put in under many names, so that a cluster takes seconds to make.
"""

from __future__ import annotations

import gzip
import itertools
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from bench.figures import Figure, percentile
from topowise import pods
from topowise_scheduler import replay
from topowise_scheduler.engine import Engine, Outcome
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

GI = 1 << 30
NODES, DISTINCT, ROUNDS = 5000, 250, 25
GPU, NIC = "nvidia.com/gpu", "intel.com/e810_vf"
RECORDED = Path(__file__).parents[3] / "shared" / "data" / "kubelet-admission.jsonl.gz"
POLICIES = (("single-numa-node", 2.0), ("restricted", 10.0), ("best-effort", 10.0))

Limits = dict[str, str | int | float | None]


class Kind(NamedTuple):
    """A model of server: cores and GiB a NUMA node, GPUs and virtual functions a NUMA node."""

    cores: int
    memory: int
    gpus: int
    functions: int


KINDS = (Kind(8, 64, 1, 4), Kind(16, 128, 1, 8), Kind(12, 96, 2, 4), Kind(16, 64, 0, 8))


class Cluster(NamedTuple):
    engine: Engine
    kubelets: list[Kubelet]


class Workload(NamedTuple):
    """`shape` makes the pod, another shape for every number; `limited`: it is held against the targets."""

    name: str
    shape: Callable[[int], pods.Needs]
    limited: bool


async def measure() -> list[Figure]:
    """All figures of the engine."""
    found = []
    for policy, target in POLICIES:
        cluster = _cluster(policy)
        if policy == "single-numa-node":
            found += _puts(cluster)
        for workload in WORKLOADS:
            found += _judgements(cluster, policy, workload, target if workload.limited else None)
    return found + _replayed()


def _judgements(cluster: Cluster, policy: str, workload: Workload, target: float | None) -> list[Figure]:
    engine = cluster.engine
    rows = engine.rows([f"node-{number}" for number in range(NODES)])
    part = np.random.default_rng(1).choice(rows, 500, replace=False)
    shapes = map(workload.shape, itertools.count(1))
    asked_before, judged_before = sum(engine.fallbacks.values()), engine.cache_misses
    all_ms = _times([partial(engine.judge, shape) for shape in itertools.islice(shapes, ROUNDS)])
    part_ms = _times([partial(engine.judge, shape, part) for shape in itertools.islice(shapes, ROUNDS)])
    asked, judged = sum(engine.fallbacks.values()) - asked_before, engine.cache_misses - judged_before
    warm = workload.shape(0)
    fits = float((engine.judge(warm).outcome == Outcome.FITS).mean())
    changed_ms = [_after_changes(cluster, warm, round_) for round_ in range(ROUNDS)]
    model_ms, unaligned = _model(cluster, warm)
    what, median = f"{policy}, {workload.name}", statistics.median(all_ms)
    told = f"  {what}: fits on {fits:.0%} of {NODES} nodes, on {unaligned:.0%} without a preferred hint"
    print(told, file=sys.stderr)
    return [
        Figure(f"{what}: 5,000 nodes cold, p50", round(median, 2), "ms", target),
        Figure(f"{what}: 5,000 nodes cold, p95", round(percentile(all_ms, 95), 2), "ms"),
        Figure(f"{what}: 500 nodes cold, p50", round(statistics.median(part_ms), 2), "ms"),
        Figure(f"{what}: 10 of 5,000 changed, p50", round(statistics.median(changed_ms), 2), "ms", target and 0.5),
        Figure(f"{what}: a loop over the model takes", round(model_ms * NODES / median), "times as long"),
        Figure(f"{what}: asked of the model", round(100 * asked / judged, 2), "% of decisions"),
    ]


def _after_changes(cluster: Cluster, warm: pods.Needs, round_: int) -> float:
    """Milliseconds of a judgement once ten nodes have changed."""
    for number in range(10):
        at = (round_ * 97 + number * 331) % NODES
        cluster.engine.put(f"node-{at}", cluster.kubelets[(at + round_ + 1) % DISTINCT])
    return _times([partial(cluster.engine.judge, warm)])[0]


def _puts(cluster: Cluster) -> list[Figure]:
    puts = [
        partial(cluster.engine.put, f"node-{number}", cluster.kubelets[(number + 7) % DISTINCT])
        for number in range(2000)
    ]
    times = _times(puts)
    return [Figure("put of a node, 8 zones, 5 resources, p50", round(1e3 * statistics.median(times), 1), "us", 50)]


def _replayed() -> list[Figure]:
    if not RECORDED.exists():
        return []
    with gzip.open(RECORDED) as file:
        lines = file.read().splitlines()
    admissions = sum(event.op == "admit" for line in lines for event in replay.read_scenario(line).events)
    took_ms = _times([partial(deque, replay.replay(lines), 0)])[0]
    return [Figure("replay of recorded scenarios, an admission", round(1e3 * took_ms / admissions, 1), "us", 200)]


def _model(cluster: Cluster, needs: pods.Needs) -> tuple[float, float]:
    """Milliseconds of a decision by the model, and where it admits the pod without a preferred hint."""
    admissions = []

    def decide(trial: Kubelet) -> None:
        admissions.append(trial.admit_view(trial.view("new", needs)))

    times = _times([partial(decide, kubelet.fork()) for kubelet in cluster.kubelets])
    unaligned = [any(not one.preferred for one in admission.placements.values()) for admission in admissions]
    return statistics.mean(times), statistics.mean(unaligned)


def _times(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Milliseconds of each call."""
    found = []
    for call in calls:
        since = time.thread_time()
        call()
        found.append((time.thread_time() - since) * 1e3)
    return found


def _cluster(policy: str) -> Cluster:
    rng = Random(policy)
    kubelets = [_loaded(rng, policy, KINDS[number % len(KINDS)]) for number in range(DISTINCT)]
    engine = Engine()
    for number in range(NODES):
        engine.put(f"node-{number}", kubelets[number % DISTINCT])
    return Cluster(engine, kubelets)


def _loaded(rng: Random, policy: str, kind: Kind) -> Kubelet:
    """A server with as many random pods as it took, some of them gone again."""
    total = 8 * kind.cores
    numa = tuple(
        NumaNode(
            id=zone,
            memory=kind.memory * GI,
            cores=tuple(
                Core(zone // 4, (core, core + total)) for core in range(zone * kind.cores, (zone + 1) * kind.cores)
            ),
            hugepages={2048: 2048},
            distances=tuple(10 if zone == other else 12 if zone // 4 == other // 4 else 32 for other in range(8)),
        )
        for zone in range(8)
    )
    machine = Machine(numa=numa, devices=tuple(_devices(kind)))
    reserved = tuple(MemoryReservation(zone, {"memory": "1Gi"}) for zone in range(8))
    configuration = KubeletConfiguration(
        topologyManagerPolicy=policy,
        cpuManagerPolicy="static",
        reservedSystemCPUs=f"0,{total}",
        memoryManagerPolicy="Static",
        reservedMemory=reserved,
        systemReserved={"cpu": "2", "memory": "8Gi"},
    )
    kubelet = Kubelet(machine, configuration)
    names: Iterator[int] = itertools.count()
    refused = 0
    while refused < rng.choice((2, 6, 12)):
        uid = f"p{next(names)}"
        refused += not kubelet.admit(_resident(rng, uid)).admitted
    for uid in list(kubelet.active):
        if rng.random() < 0.25:
            kubelet.remove(uid)
    return kubelet


def _devices(kind: Kind) -> Iterator[DevicePlugin]:
    for resource, count in ((GPU, kind.gpus), (NIC, kind.functions)):
        devices = [Device(f"{resource}-{zone}-{one}", (zone,)) for zone in range(8) for one in range(count)]
        yield DevicePlugin(resource, tuple(devices))


def _resident(rng: Random, uid: str) -> pods.Pod:
    limits: Limits = {
        "cpu": rng.choice(("1", "2", "4", "4", "6", "8", "12")),
        "memory": rng.choice(("2Gi", "8Gi", "16Gi", "30Gi")),
    }
    for name, share in (("hugepages-2Mi", 0.2), (GPU, 0.3), (NIC, 0.4)):
        if rng.random() < share:
            limits[name] = "1Gi" if name == "hugepages-2Mi" else "1"
    return _pod(uid, limits)


def _pod(uid: str, *containers: Limits, init: int = 0) -> pods.Pod:
    made = [pods.Container(f"c{number}", pods.Resources(limits=limits)) for number, limits in enumerate(containers)]
    return pods.Pod(pods.Metadata(uid=uid), pods.Spec(containers=tuple(made[init:]), initContainers=tuple(made[:init])))


def _five(number: int) -> pods.Needs:
    limits: Limits = {"cpu": "6", "memory": 12 * GI + number, "hugepages-2Mi": "512Mi", GPU: "1", NIC: "1"}
    return pods.needs(_pod("new", limits))


def _wide(number: int) -> pods.Needs:
    """Fits on few nodes where everything is free on one zone."""
    limits: Limits = {"cpu": "12", "memory": 8 * GI + number, "hugepages-2Mi": "512Mi", GPU: "2", NIC: "2"}
    return pods.needs(_pod("new", limits))


def _several(number: int) -> pods.Needs:
    init: Limits = {"cpu": "1", "memory": GI + number}
    main: Limits = {"cpu": "4", "memory": 8 * GI, GPU: "1", NIC: "1"}
    side: Limits = {"cpu": "2", "memory": 4 * GI, NIC: "1"}
    return pods.needs(_pod("new", init, main, side, init=1))


def _large(number: int) -> pods.Needs:
    limits: Limits = {"cpu": "40", "memory": 150 * GI + number, "hugepages-2Mi": "5Gi", GPU: "2", NIC: "9"}
    return pods.needs(_pod("new", limits))


WORKLOADS = (
    Workload("5 resources", _five, limited=True),
    Workload("5 resources in numbers", _wide, limited=True),
    Workload("larger than a zone", _large, limited=True),
    Workload("init and two containers", _several, limited=False),
)
