"""Every scheduler on every kind of cluster, filled once and kept busy for long, with several streams of pods."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from multiprocessing import get_context
from typing import Final, NamedTuple

from bench.density import bound, machines, mix, schedulers, steady
from bench.density.cluster import Cluster
from bench.density.filling import Stream, fill
from bench.results import Filled, Found, Row, Steady, SteadyRow
from topowise import pods
from topowise_scheduler import strategies
from topowise_scheduler.kubelet import Kubelet

NODES: Final = 20
SEEDS: Final = int(os.environ.get("BENCH_SEEDS", "5"))
ZONES: Final = (1, 2, 4, 8)


class Setting(NamedTuple):
    """A kubelet's policy and scope, for a mix."""

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
# On one NUMA node policy and scope make no difference.
_ONE_ZONE: Final = (SETTINGS[0], SETTINGS[2], SETTINGS[4])
# FGD is about GPUs. No other device runs short in these mixes.
_OF_GPUS: Final = "gpu-trace"
# Kept busy: a kind of each mix, and more of the one in which two resources are short.
BUSY: Final = ((SETTINGS[0], 2), (SETTINGS[0], 4), (SETTINGS[1], 4), (SETTINGS[2], 4), (SETTINGS[4], 4))
# Where every pod fits one NUMA node, LeastNUMANodes and NUMAAware take any. Beside kube-scheduler's scores TightFit is
# nearly what it is alone, and who packs blindly is refused for ever.
STEADY_NAMES: Final = (*strategies.NAMES[:4], schedulers.BLIND[0])


class _Task(NamedTuple):
    setting: Setting
    zones: int
    is_steady: bool
    seed: int


class _Result(NamedTuple):
    scheduler: str
    left_out: float
    bound: int
    found: Filled | Steady


async def measure() -> Found:
    """By setting, zones, and scheduler."""
    kinds = [(one, zones, False) for one in SETTINGS for zones in ZONES if zones > 1 or one in _ONE_ZONE]
    kinds += [(one, zones, True) for one, zones in BUSY]
    tasks = [_Task(*kind, seed) for kind in kinds for seed in range(SEEDS)]
    filled: list[Row] = []
    busy: list[SteadyRow] = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        results = groupby(zip(tasks, pool.map(_run, tasks), strict=True), lambda one: one[0][:3])
        for part, ((setting, zones, is_steady), group) in enumerate(results, 1):
            found = [one for _, one in group]
            what = f"{', '.join(setting)}, {zones} NUMA nodes{', kept busy' if is_steady else ''}"
            print(f"  part {part} of {len(kinds)}: {what}", file=sys.stderr, flush=True)
            if is_steady:
                busy += _steady_rows(setting, zones, found)
            else:
                filled += _rows(setting, zones, found)
    return Found(density=filled, steady=busy)


def _run(task: _Task) -> list[_Result]:
    """All schedulers with one stream."""
    setting = task.setting
    recorded = next(one for one in mix.read() if one.name == setting.mix)
    empty = machines.kubelet(recorded.machine, task.zones, setting.policy, setting.scope)
    possible = [(shape.needs(), shape.count) for shape in recorded.shapes if _fits(empty, shape.needs())]
    needs, counts = [one for one, _ in possible], [count for _, count in possible]
    left_out = 1 - sum(counts) / sum(shape.count for shape in recorded.shapes)
    most = bound.longest_prefix(Stream(counts, task.seed).next, needs, empty, NODES)
    device = next(iter(recorded.machine.devices), "")

    def found(scheduler: schedulers.Scheduler) -> Filled | Steady:
        cluster = Cluster(empty, NODES)
        if task.is_steady:
            return steady.keep_busy(cluster, scheduler, needs, counts, task.seed, most, device)
        return fill(cluster, scheduler, needs, counts, task.seed, device)

    named = {name: schedulers.make(name) for name in (STEADY_NAMES if task.is_steady else schedulers.NAMES)}
    if setting.mix == _OF_GPUS:
        named |= schedulers.yardsticks(needs, counts, device, by_pod=setting.scope == "pod")
    return [_Result(name, left_out, most, found(scheduler)) for name, scheduler in named.items()]


def _fits(empty: Kubelet, needs: pods.Needs) -> bool:
    trial = empty.fork()
    return trial.admit_view(trial.view("new", needs)).admitted


def _rows(setting: Setting, zones: int, found: Sequence[Sequence[_Result]]) -> Iterable[Row]:
    bounds = tuple(seed[0].bound for seed in found)
    for of_seeds in zip(*found, strict=True):
        filled = tuple(one.found for one in of_seeds if isinstance(one.found, Filled))
        yield Row(*setting, zones, of_seeds[0].scheduler, of_seeds[0].left_out, filled, bounds)


def _steady_rows(setting: Setting, zones: int, found: Sequence[Sequence[_Result]]) -> Iterator[SteadyRow]:
    for of_seeds in zip(*found, strict=True):
        kept = tuple(one.found for one in of_seeds if isinstance(one.found, Steady))
        yield SteadyRow(*setting, zones, of_seeds[0].scheduler, kept)
