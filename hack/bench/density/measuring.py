"""Fills every kind of cluster with every scheduler, with several random streams of pods each."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import Final, NamedTuple

from bench.density import bound, machines, mix, schedulers
from bench.results import DensityRow, Filled, PartResults
from topowise import pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.overlay import plan
from topowise_scheduler.overlay.plan.filling import Stream

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
    node_type = machines.node_type(pod_mix.machine, task.zones, setting.policy, setting.scope)
    empty = node_type.kubelet()
    possible = [shape for shape in pod_mix.shapes if _fits(empty, shape.needs())]
    needs, counts = [shape.needs() for shape in possible], [shape.count for shape in possible]
    left_out = 1 - sum(counts) / sum(shape.count for shape in pod_mix.shapes)
    most = bound.longest_prefix(Stream(counts, Random(seed)).next, needs, empty, NODES)
    inventory = plan.Inventory(tuple(plan.PlannedNode(f"{number:02}", node_type) for number in range(NODES)))
    workloads = [
        plan.Workload(f"shape-{number}", shape.pod(f"shape-{number}"), shape.count)
        for number, shape in enumerate(possible)
    ]
    device = next(iter(pod_mix.machine.devices), "")
    return [
        _Result(name, left_out, most, filled(inventory, schedulers.make(name, Random(seed)), workloads, seed, device))
        for name in schedulers.NAMES
    ]


def filled(
    inventory: plan.Inventory, scheduler: plan.Scheduler, workloads: Sequence[plan.Workload], seed: int, device: str
) -> Filled:
    """Returns what runs once no pod of the mix fits any more."""
    fleet = plan.fleet_of(inventory, scheduler)
    mixed = plan.fill(fleet, workloads, seed)
    zones = [count for pod in mixed.placed if (count := zones_of(fleet, pod))]
    return Filled(
        first=mixed.first,
        running=len(mixed.placed),
        refused=fleet.kubelet_refusals,
        cpus=round(_share(fleet, "cpu"), 4),
        devices=round(_share(fleet, device), 4),
        zones=round(sum(zones) / max(1, len(zones)), 3),
    )


def zones_of(fleet: plan.Fleet, pod: plan.Placed) -> int:
    """Returns how many NUMA nodes hold the pod's exclusive CPUs and memory; 0 for a pod without any."""
    kubelet = fleet.ledger.kubelet(pod.node)
    assert kubelet is not None
    zones: set[int] = set()
    for placement in kubelet.placements(pod.uid).values():
        cpus = placement.cpus or 0
        zones.update(zone for zone, zone_cpus in enumerate(kubelet.topology.numa_cpus) if cpus & zone_cpus)
        zones.update(zone for block in placement.memory for zone in block.numa)
    return len(zones)


def _share(fleet: plan.Fleet, resource: str) -> float:
    """Returns the share of a resource that is in use; 0 if the nodes have none."""
    sums = fleet.sums
    allocatable = int(sums.allocatable[resource].sum()) if resource in sums.allocatable else 0
    return int(sums.requested[resource].sum()) / allocatable if allocatable and resource in sums.requested else 0.0


def _fits(empty: Kubelet, needs: pods.Needs) -> bool:
    return trial(empty, empty.view("new", needs)).admission.admitted


def _row(setting: Setting, zones: int, results: Sequence[_Result]) -> DensityRow:
    """Returns the row of one scheduler from its results, one per seed."""
    filled, bounds = tuple(result.filled for result in results), tuple(result.bound for result in results)
    return DensityRow(*setting, zones, results[0].scheduler, results[0].left_out, filled, bounds)
