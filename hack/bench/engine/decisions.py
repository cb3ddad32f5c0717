"""Decisions about a pod and 5,000 loaded nodes of 8 NUMA nodes and 5 resources, compared with a loop over the model.

A cold decision is about a new shape of pod, with up-to-date arrays of all nodes.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Final, NamedTuple

import numpy as np

from bench.engine.growth import after_changes
from bench.engine.servers import KINDS, loaded
from bench.engine.workloads import WORKLOADS, Workload, five
from bench.figures import Figure, percentile
from bench.usage import thread_ms
from sandbox.judging import judge
from topowise import pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, version_of
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts.engine import Engine, Outcome

NODES, DISTINCT, ROUNDS = 5000, 250, 25
VERSIONS: Final = ("v1.31.14", "v1.33.13", "v1.35.6", "v1.36.2")
POLICIES: Final = ("single-numa-node", "restricted", "best-effort")


class Cluster(NamedTuple):
    engine: Engine
    kubelets: list[Kubelet]


def measure() -> list[Figure]:
    """Returns all figures of decisions."""
    figures = []
    for policy in POLICIES:
        cluster = _cluster(policy)
        if policy == "single-numa-node":
            figures += _puts(cluster)
        for workload in WORKLOADS:
            figures += _judgements(cluster, policy, workload)
    for policy in ("single-numa-node", "restricted"):
        figures += _mixed(_cluster(policy, VERSIONS), f"{policy}, kubelets of four versions")
    return figures


def _mixed(cluster: Cluster, name: str) -> list[Figure]:
    """Nodes in the middle of an upgrade."""
    shapes = map(PodRequests, map(five, itertools.count(1)))
    cold = thread_ms([partial(judge, cluster.engine, shape) for shape in itertools.islice(shapes, ROUNDS)])
    warm = PodRequests(five(0))
    judge(cluster.engine, warm)
    changed = [after_changes(cluster.engine, cluster.kubelets, warm, round_) for round_ in range(ROUNDS)]
    return [
        Figure(f"{name}: 5,000 nodes cold, p50", round(statistics.median(cold), 2), "ms"),
        Figure(f"{name}: 10 of 5,000 changed, p50", round(statistics.median(changed), 2), "ms"),
    ]


def _judgements(cluster: Cluster, policy: str, workload: Workload) -> list[Figure]:
    engine = cluster.engine
    rows = engine.rows([f"node-{number}" for number in range(NODES)])
    part = np.random.default_rng(1).choice(rows, 500, replace=False)
    shapes = map(PodRequests, map(workload.shape, itertools.count(1)))
    asked_before, judged_before = sum(engine.fallbacks.values()), engine.cache_misses
    all_ms = thread_ms([partial(judge, engine, shape) for shape in itertools.islice(shapes, ROUNDS)])
    part_ms = thread_ms([partial(judge, engine, shape, part) for shape in itertools.islice(shapes, ROUNDS)])
    fallbacks, judged = sum(engine.fallbacks.values()) - asked_before, engine.cache_misses - judged_before
    warm = PodRequests(workload.shape(0))
    fits = float((judge(engine, warm).outcome == Outcome.FITS).mean())
    changed_ms = [after_changes(cluster.engine, cluster.kubelets, warm, round_) for round_ in range(ROUNDS)]
    model_ms, unaligned = _model(cluster, warm.needs)
    name, median = f"{policy}, {workload.name}", statistics.median(all_ms)
    line = f"  {name}: fits on {fits:.0%} of {NODES} nodes, on {unaligned:.0%} without a preferred hint"
    print(line, file=sys.stderr)
    return [
        Figure(f"{name}: 5,000 nodes cold, p50", round(median, 2), "ms"),
        Figure(f"{name}: 5,000 nodes cold, p95", round(percentile(all_ms, 95), 2), "ms"),
        Figure(f"{name}: 500 nodes cold, p50", round(statistics.median(part_ms), 2), "ms"),
        Figure(f"{name}: 10 of 5,000 changed, p50", round(statistics.median(changed_ms), 2), "ms"),
        Figure(f"{name}: a loop over the model takes", round(model_ms * NODES / median), "times as long"),
        Figure(f"{name}: asked of the model", round(100 * fallbacks / judged, 2), "% of decisions"),
    ]


def _puts(cluster: Cluster) -> list[Figure]:
    puts = [
        partial(cluster.engine.put, f"node-{number}", cluster.kubelets[(number + 7) % DISTINCT])
        for number in range(2000)
    ]
    times = thread_ms(puts)
    return [Figure("put of a node, 8 zones, 5 resources, p50", round(1e3 * statistics.median(times), 1), "us")]


def _model(cluster: Cluster, needs: pods.Needs) -> tuple[float, float]:
    """Milliseconds of a decision by the model, and where it admits the pod without a preferred hint."""
    admissions = []

    def decide(trial: Kubelet) -> None:
        admissions.append(trial.admit_view(trial.view("new", needs)))

    times = thread_ms([partial(decide, kubelet.fork()) for kubelet in cluster.kubelets])
    unaligned = [
        any(not placement.preferred for placement in admission.placements.values()) for admission in admissions
    ]
    return statistics.mean(times), statistics.mean(unaligned)


def _cluster(policy: str, versions: Sequence[str] = ()) -> Cluster:
    rng = Random(policy)
    known = [version_of(text) for text in versions] or [NEWEST_RECORDED]
    kubelets = [
        loaded(rng, policy, KINDS[number % len(KINDS)], version=known[number // len(KINDS) % len(known)])
        for number in range(DISTINCT)
    ]
    engine = Engine()
    for number in range(NODES):
        engine.put(f"node-{number}", kubelets[number % DISTINCT])
    return Cluster(engine, kubelets)
