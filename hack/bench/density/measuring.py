"""Every scheduler on every kind of cluster, and some kept busy for long, with several streams of pods."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Final, Literal, NamedTuple

from bench.density import bound, machines, mix, schedulers, steady
from bench.density.cluster import Cluster
from bench.density.filling import Stream, fill, offer
from bench.density.moving import Planner, PlannerOf
from bench.results import Filled, Found, Offered, OfferedRow, Row, Steady, SteadyRow
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
# Kept busy. Of the data plane's pods none waits at such a load, whoever places them.
BUSY: Final = ((SETTINGS[0], 4), (SETTINGS[4], 4))
# Where every pod fits one NUMA node, LeastNUMANodes and NUMAAware take any. Beside kube-scheduler's scores TightFit is
# nearly what it is alone, and who packs blindly is refused for ever.
SOME_NAMES: Final = (*strategies.NAMES[:4], schedulers.BLIND[0])


class _Task(NamedTuple):
    how: Literal["filled", "offered the same pods", "kept busy"]
    setting: Setting
    zones: int
    seed: int


class _Result(NamedTuple):
    scheduler: str
    left_out: float
    bound: int
    found: Filled | Offered | Steady


async def measure() -> Found:
    """By setting, zones, and scheduler."""
    every = [(one, zones) for one in SETTINGS for zones in ZONES if zones > 1 or one in _ONE_ZONE]
    kinds = [_Task("filled", *kind, 0) for kind in every]
    kinds += [_Task("offered the same pods", *kind, 0) for kind in every if kind[0].mix == _OF_GPUS]
    kinds += [_Task("kept busy", *kind, 0) for kind in BUSY]
    tasks = [kind._replace(seed=seed) for kind in kinds for seed in range(SEEDS)]
    found = Found()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        of_seeds = zip(*[iter(pool.map(_run, tasks))] * SEEDS, strict=True)
        for part, (kind, results) in enumerate(zip(kinds, of_seeds, strict=True), 1):
            _say(f"part {part} of {len(kinds)}: {', '.join(kind.setting)}, {kind.zones} NUMA nodes, {kind.how}")
            for one in zip(*results, strict=True):
                _add(found, kind, one)
    return found


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _run(task: _Task) -> list[_Result]:
    """All schedulers with one stream."""
    setting, seed = task.setting, task.seed
    recorded = next(one for one in mix.read() if one.name == setting.mix)
    empty = machines.kubelet(recorded.machine, task.zones, setting.policy, setting.scope)
    possible = [shape for shape in recorded.shapes if _fits(empty, shape.needs())]
    needs, counts = [one.needs() for one in possible], [one.count for one in possible]
    left_out = 1 - sum(counts) / sum(shape.count for shape in recorded.shapes)
    most = bound.longest_prefix(Stream(counts, seed).next, needs, empty, NODES)
    device = next(iter(recorded.machine.devices), "")

    def found(scheduler: schedulers.Scheduler, planner: PlannerOf | None = None) -> Filled | Offered | Steady:
        cluster = Cluster(empty, NODES)
        match task.how:
            case "filled":
                return fill(cluster, scheduler, needs, counts, seed, device)
            case "offered the same pods":
                stream = Stream(counts, seed)
                return offer(cluster, scheduler, needs, [stream.next() for _ in range(most)], seed, device)
            case "kept busy":
                return steady.keep_busy(cluster, scheduler, needs, counts, seed, most, device, planner)

    named = {name: schedulers.make(name) for name in (schedulers.NAMES if task.how == "filled" else SOME_NAMES)}
    if setting.mix == _OF_GPUS:
        named |= schedulers.yardsticks(needs, counts, device, by_pod=setting.scope == "pod")
    results = [_Result(name, left_out, most, found(scheduler)) for name, scheduler in named.items()]
    if task.how == "kept busy" and setting.mix == _OF_GPUS:
        planner = partial(
            Planner,
            machines.machine(recorded.machine, task.zones),
            machines.configuration(recorded.machine, task.zones, setting.policy, setting.scope),
            possible,
        )
        results.append(_Result(schedulers.MOVING, left_out, most, found(schedulers.make(schedulers.MOVING), planner)))
    return results


def _fits(empty: Kubelet, needs: pods.Needs) -> bool:
    trial = empty.fork()
    return trial.admit_view(trial.view("new", needs)).admitted


def _add(found: Found, kind: _Task, of_seeds: Sequence[_Result]) -> None:
    """A row of one scheduler."""
    head = (*kind.setting, kind.zones, of_seeds[0].scheduler)
    bounds = tuple(one.bound for one in of_seeds)
    filled = tuple(one.found for one in of_seeds if isinstance(one.found, Filled))
    offered = tuple(one.found for one in of_seeds if isinstance(one.found, Offered))
    busy = tuple(one.found for one in of_seeds if isinstance(one.found, Steady))
    if filled:
        found.density.append(Row(*head, of_seeds[0].left_out, filled, bounds))
    if offered:
        found.offered.append(OfferedRow(*head, offered, bounds))
    if busy:
        found.steady.append(SteadyRow(*head, busy))
