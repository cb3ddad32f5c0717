"""Fills every kind of cluster with every scheduler, with several random streams of pods each."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from typing import Final, NamedTuple

from bench.density import machines, mix, schedulers
from bench.figures import Figure
from topowise import pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.overlay import plan

NODES: Final = 20
SEEDS: Final = int(os.environ.get("BENCH_SEEDS", "5"))
ZONES: Final = (2, 8)


class Setting(NamedTuple):
    """A mix of pods, and the Topology Manager's policy and scope."""

    mix: str
    policy: str
    scope: str


SETTINGS: Final = (
    Setting("gpu-trace", "single-numa-node", "container"),
    Setting("data-plane", "single-numa-node", "container"),
    Setting("services", "single-numa-node", "pod"),
    Setting("services", "restricted", "container"),
)


class Filled(NamedTuple):
    """A cluster that a scheduler has filled.

    `first`: pods that ran at the first refusal, or at the first pod that fit nowhere. `running`: pods at the end.
    `refused`: refusals by kubelets. A node that has refused a shape is not sent the shape again before the next
    admission, although kube-scheduler would do so. `zones`: the mean number of NUMA nodes of a pod.
    """

    first: int
    running: int
    refused: int
    zones: float


class _Task(NamedTuple):
    setting: Setting
    zones: int
    seed: int


async def measure() -> list[Figure]:
    """Returns the figures of each setting, number of NUMA nodes and scheduler: medians of the seeds."""
    kinds = [(setting, zones) for setting in SETTINGS for zones in ZONES]
    tasks = [_Task(setting, zones, seed) for setting, zones in kinds for seed in range(SEEDS)]
    figures: list[Figure] = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        results_by_kind = zip(*[iter(pool.map(_run, tasks))] * SEEDS, strict=True)
        for number, ((setting, zones), results) in enumerate(zip(kinds, results_by_kind, strict=True), 1):
            cluster = f"{', '.join(setting)}, {zones} NUMA nodes"
            print(f"  cluster {number} of {len(kinds)}: {cluster}", file=sys.stderr, flush=True)
            for place, name in enumerate(schedulers.NAMES):
                figures += _figures(f"{cluster}, {name}", [by_scheduler[place] for by_scheduler in results])
    return figures


def _figures(title: str, filled: Sequence[Filled]) -> list[Figure]:
    first, _, refused, zones = (statistics.median(values) for values in zip(*filled, strict=True))
    return [
        Figure(f"{title}: until a pod waits", first, "pods"),
        Figure(f"{title}: refused by kubelets", refused, "refusals"),
        Figure(f"{title}: NUMA nodes of a pod", round(zones, 2), "NUMA nodes"),
    ]


def _run(task: _Task) -> list[Filled]:
    """Fills a cluster with the same stream of pods by each scheduler."""
    setting, seed = task.setting, task.seed
    pod_mix = next(recorded for recorded in mix.read() if recorded.name == setting.mix)
    node_type = machines.node_type(pod_mix.machine, task.zones, setting.policy, setting.scope)
    empty = node_type.kubelet()
    possible = [shape for shape in pod_mix.shapes if _fits(empty, shape.needs())]
    inventory = plan.Inventory(tuple(plan.PlannedNode(f"{number:02}", node_type) for number in range(NODES)))
    workloads = [
        plan.Workload(f"shape-{number}", shape.pod(f"shape-{number}"), shape.count)
        for number, shape in enumerate(possible)
    ]
    return [filled(inventory, schedulers.make(name, Random(seed)), workloads, seed) for name in schedulers.NAMES]


def filled(
    inventory: plan.Inventory, scheduler: plan.Scheduler, workloads: Sequence[plan.Workload], seed: int
) -> Filled:
    """Returns what runs once no pod of the mix fits any more."""
    fleet = plan.fleet_of(inventory, scheduler)
    mixed = plan.fill(fleet, workloads, seed)
    zones = [count for pod in mixed.placed if (count := zones_of(fleet, pod))]
    return Filled(
        first=mixed.first,
        running=len(mixed.placed),
        refused=fleet.kubelet_refusals,
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


def _fits(empty: Kubelet, needs: pods.Needs) -> bool:
    return trial(empty, empty.view("new", needs)).admission.admitted
