"""The engine: one pod against 5,000 loaded nodes of 8 NUMA nodes and 5 resources, beside a loop over the model.

Cold is a shape of pod never asked before, with the counts of all nodes in place. A few hundred nodes are loaded by the
model itself and put in again and again under other names, so that a cluster takes seconds to make.
"""

from __future__ import annotations

import gzip
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
NODES, DISTINCT, SAMPLE, ROUNDS = 5000, 250, 40, 25
GPU, NIC = "nvidia.com/gpu", "intel.com/e810_vf"
RECORDED = Path(__file__).parents[3] / "shared" / "data" / "kubelet-admission.jsonl.gz"


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


async def measure() -> list[Figure]:
    """All figures of the engine."""
    found = []
    for policy, target in (("single-numa-node", 2.0), ("restricted", 10.0), ("best-effort", 10.0)):
        cluster = _cluster(policy)
        print(f"  {policy}: {NODES} nodes are loaded", file=sys.stderr)
        found += _cold(cluster, policy, target)
        if policy == "single-numa-node":
            found += _puts(cluster)
    return found + _replayed()


def _cold(cluster: Cluster, policy: str, target: float) -> list[Figure]:
    engine = cluster.engine
    rows = engine.rows([f"node-{number}" for number in range(NODES)])
    part = np.random.default_rng(1).choice(rows, 500, replace=False)
    figures = []
    workloads: tuple[tuple[str, Callable[[int], pods.Needs], float | None], ...] = (
        ("pod of 5 resources", _five, target),
        ("init container and two containers", _several, None),
        ("pod larger than a zone", _large, target),
    )
    for name, needs_of, limit in workloads:
        asked = (needs_of(number) for number in itertools.count())
        before = dict(engine.fallbacks)
        all_ms = _times(lambda asked=asked: engine.judge(next(asked)))
        part_ms = _times(lambda asked=asked: engine.judge(next(asked), part))
        fallen = sum(engine.fallbacks.values()) - sum(before.values())
        judged = 2 * (NODES + 500) * ROUNDS
        warm = next(asked)
        fits = engine.judge(warm).outcome == Outcome.FITS
        changed_ms = []
        for round_ in range(ROUNDS):
            for number in range(10):
                at = (round_ * 97 + number * 331) % NODES
                engine.put(f"node-{at}", cluster.kubelets[(at + round_ + 1) % DISTINCT])
            since = time.thread_time()
            engine.judge(warm)
            changed_ms.append((time.thread_time() - since) * 1e3)
        model_s = _model(cluster, warm)
        what = f"{policy}, {name}"
        print(f"    {name}: fits on {fits.mean():.0%}, {fallen / judged:.1%} asked of the model", file=sys.stderr)
        median = statistics.median(all_ms)
        figures += [
            Figure(f"{what}: 5,000 nodes cold, p50", round(median, 2), "ms", limit),
            Figure(f"{what}: 5,000 nodes cold, p95", round(percentile(all_ms, 95), 2), "ms"),
            Figure(f"{what}: 500 nodes cold, p50", round(statistics.median(part_ms), 2), "ms"),
            Figure(f"{what}: 10 of 5,000 changed, p50", round(statistics.median(changed_ms), 2), "ms", 0.5 if limit else None),
            Figure(f"{what}: the model's loop takes longer", round(model_s * NODES * 1e3 / median), "times"),
            Figure(f"{what}: decisions of the model", round(100 * fallen / judged, 2), "%"),
        ]
    return figures


def _puts(cluster: Cluster) -> list[Figure]:
    times = []
    for number in range(2000):
        since = time.thread_time()
        cluster.engine.put(f"node-{number}", cluster.kubelets[(number + 7) % DISTINCT])
        times.append((time.thread_time() - since) * 1e6)
    return [Figure("put of a node, 8 zones, 5 resources, p50", round(statistics.median(times), 1), "us", 50)]


def _replayed() -> list[Figure]:
    if not RECORDED.exists():
        return []
    with gzip.open(RECORDED) as file:
        lines = file.read().splitlines()
    scenarios = [replay.read_scenario(line) for line in lines]
    admissions = sum(event.op == "admit" for scenario in scenarios for event in scenario.events)
    with tempfile.TemporaryDirectory():
        since = time.thread_time()
        for _ in replay.replay(lines):
            pass
        took = time.thread_time() - since
    return [Figure("replay of recorded scenarios, an admission", round(took / admissions * 1e6, 1), "us", 200)]


def _model(cluster: Cluster, needs: pods.Needs) -> float:
    """Seconds the one-node model takes for a decision."""
    since = time.thread_time()
    for kubelet in cluster.kubelets[:SAMPLE]:
        trial = kubelet.fork()
        trial.admit_view(trial.view("new", needs))
    return (time.thread_time() - since) / SAMPLE


def _times(call: Callable[[], object]) -> list[float]:
    call()
    found = []
    for _ in range(ROUNDS):
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
    limits: dict[str, str | int | float | None] = {
        "cpu": rng.choice(("1", "2", "4", "4", "6", "8", "12")),
        "memory": rng.choice(("2Gi", "8Gi", "16Gi", "30Gi")),
    }
    for name, share in (("hugepages-2Mi", 0.2), (GPU, 0.3), (NIC, 0.4)):
        if rng.random() < share:
            limits[name] = "1Gi" if name == "hugepages-2Mi" else "1"
    return _pod(uid, limits)


def _pod(uid: str, *containers: dict[str, str | int | float | None], init: int = 0) -> pods.Pod:
    made = [pods.Container(f"c{number}", pods.Resources(limits=limits)) for number, limits in enumerate(containers)]
    return pods.Pod(pods.Metadata(uid=uid), pods.Spec(containers=tuple(made[init:]), initContainers=tuple(made[:init])))


def _five(number: int) -> pods.Needs:
    limits = {"cpu": "6", "memory": 12 * GI + number, "hugepages-2Mi": "512Mi", GPU: "1", NIC: "1"}
    return pods.needs(_pod("new", limits))


def _several(number: int) -> pods.Needs:
    init = {"cpu": "1", "memory": GI + number}
    main = {"cpu": "4", "memory": 8 * GI, GPU: "1", NIC: "1"}
    return pods.needs(_pod("new", init, main, {"cpu": "2", "memory": 4 * GI, NIC: "1"}, init=1))


def _large(number: int) -> pods.Needs:
    return pods.needs(_pod("new", {"cpu": "40", "memory": 150 * GI + number, "hugepages-2Mi": "5Gi", GPU: "2", NIC: "9"}))
