"""Fills every kind of cluster with every scheduler, with several random streams of pods each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final, NamedTuple

from bench.density import bound, machines, mix, schedulers
from bench.density.cluster import Cluster
from bench.density.filling import Stream, fill
from bench.results import DensityRow, Filled, PartResults
from topowise import pods
from topowise_scheduler.kubelet import Kubelet

NODES: Final = 20
SEEDS: Final = int(os.environ.get("BENCH_SEEDS", "5"))
ZONES: Final = (1, 2, 4, 8)


class Setting(NamedTuple):
    """A mix of pods, and the Topology Manager's policy and scope."""

    mix: str
    policy: str
    scope: str


SETTINGS: Final = (
    Setting("gpu-trace", "single-numa-node", "container"),
    Setting("gpu-trace", "restricted", "container"),
    Setting("data-plane", "single-numa-node", "container"),
    Setting("data-plane", "single-numa-node", "pod"),
    Setting("services", "single-numa-node", "container"),
    Setting("services", "single-numa-node", "pod"),
    Setting("services", "restricted", "container"),
)
# On a machine with a single NUMA node, policy and scope make no difference.
_SINGLE_ZONE: Final = (SETTINGS[0], SETTINGS[2], SETTINGS[4])


class _Task(NamedTuple):
    setting: Setting
    zones: int
    seed: int


class _Result(NamedTuple):
    scheduler: str
    left_out: float
    bound: int
    filled: Filled


async def measure() -> PartResults:
    """Returns a row per setting, number of NUMA nodes and scheduler."""
    kinds = [(setting, zones) for setting in SETTINGS for zones in ZONES if zones > 1 or setting in _SINGLE_ZONE]
    tasks = [_Task(setting, zones, seed) for setting, zones in kinds for seed in range(SEEDS)]
    rows: list[DensityRow] = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        results_by_kind = zip(*[iter(pool.map(_run, tasks))] * SEEDS, strict=True)
        for number, ((setting, zones), results) in enumerate(zip(kinds, results_by_kind, strict=True), 1):
            progress = f"  cluster {number} of {len(kinds)}: {', '.join(setting)}, {zones} NUMA nodes"
            print(progress, file=sys.stderr, flush=True)
            rows += [_row(setting, zones, by_seed) for by_seed in zip(*results, strict=True)]
    return PartResults(density=rows)


def _run(task: _Task) -> list[_Result]:
    """Fills a cluster with the same stream of pods by each scheduler."""
    setting, seed = task.setting, task.seed
    pod_mix = next(recorded for recorded in mix.read() if recorded.name == setting.mix)
    empty = machines.kubelet(pod_mix.machine, task.zones, setting.policy, setting.scope)
    possible = [shape for shape in pod_mix.shapes if _fits(empty, shape.needs())]
    needs, counts = [shape.needs() for shape in possible], [shape.count for shape in possible]
    left_out = 1 - sum(counts) / sum(shape.count for shape in pod_mix.shapes)
    most = bound.longest_prefix(Stream(counts, seed).next, needs, empty, NODES)
    device = next(iter(pod_mix.machine.devices), "")
    return [
        _Result(name, left_out, most, fill(Cluster(empty, NODES), schedulers.make(name), needs, counts, seed, device))
        for name in schedulers.NAMES
    ]


def _fits(empty: Kubelet, needs: pods.Needs) -> bool:
    trial = empty.fork()
    return trial.admit_view(trial.view("new", needs)).admitted


def _row(setting: Setting, zones: int, results: Sequence[_Result]) -> DensityRow:
    """Returns the row of one scheduler from its results, one per seed."""
    filled, bounds = tuple(result.filled for result in results), tuple(result.bound for result in results)
    return DensityRow(*setting, zones, results[0].scheduler, results[0].left_out, filled, bounds)
