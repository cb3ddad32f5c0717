"""Every scheduler on every cluster, with several seeds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import groupby
from multiprocessing import get_context
from typing import Final, NamedTuple

from bench.density import bound, machines, mix, schedulers
from bench.density.cluster import Cluster
from bench.density.filling import Stream, fill
from bench.results import Filled, Found, Row
from topowise import pods
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


class _Cell(NamedTuple):
    setting: Setting
    zones: int
    seed: int


class _CellResult(NamedTuple):
    cell: _Cell
    scheduler: str
    left_out: float
    bound: int
    filled: Filled


async def measure() -> Found:
    """By setting, zones, and scheduler."""
    cells = [
        _Cell(setting, zones, seed)
        for setting in SETTINGS
        for zones in ZONES
        if zones > 1 or setting in _ONE_ZONE
        for seed in range(SEEDS)
    ]
    results: list[_CellResult] = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        for cell, found in zip(cells, pool.map(_run, cells), strict=True):
            results += found
            if cell.seed == SEEDS - 1:
                _say(found)
    return Found(density=list(_rows(results)))


def _run(cell: _Cell) -> list[_CellResult]:
    """All schedulers with one stream."""
    setting = cell.setting
    recorded = next(one for one in mix.read() if one.name == setting.mix)
    empty = machines.kubelet(recorded.machine, cell.zones, setting.policy, setting.scope)
    possible = [(shape.needs(), shape.count) for shape in recorded.shapes if _fits(empty, shape.needs())]
    needs, counts = [one for one, _ in possible], [count for _, count in possible]
    left_out = 1 - sum(counts) / sum(shape.count for shape in recorded.shapes)
    most = bound.longest_prefix(Stream(counts, cell.seed).next, needs, empty, NODES)
    device = next(iter(recorded.machine.devices), "")
    return [
        _CellResult(
            cell,
            name,
            left_out,
            most,
            fill(Cluster(empty, NODES), schedulers.make(name), needs, counts, cell.seed, device),
        )
        for name in schedulers.NAMES
    ]


def _fits(empty: Kubelet, needs: pods.Needs) -> bool:
    trial = empty.fork()
    return trial.admit_view(trial.view("new", needs)).admitted


def _rows(results: Iterable[_CellResult]) -> Iterable[Row]:
    def key(one: _CellResult) -> tuple[int, int, int]:
        return (
            SETTINGS.index(one.cell.setting),
            one.cell.zones,
            schedulers.NAMES.index(one.scheduler),
        )

    for _, group in groupby(sorted(results, key=key), key):
        found = list(group)
        (setting, zones, _), scheduler, left_out, _, _ = found[0]
        yield Row(
            *setting,
            zones,
            scheduler,
            left_out,
            tuple(one.filled for one in found),
            tuple(one.bound for one in found),
        )


def _say(found: Sequence[_CellResult]) -> None:
    (setting, zones, _), best = found[0].cell, max(found, key=lambda one: one.filled.first)
    print(
        f"  {', '.join(setting)}, {zones} NUMA nodes: {best.filled.first} of at most {best.bound} pods"
        f" by {best.scheduler}",
        file=sys.stderr,
        flush=True,
    )
