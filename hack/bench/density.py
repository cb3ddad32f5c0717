"""Density: how many pods of a mix a cluster runs before the first pod waits.

Fills every kind of cluster with every scheduler: topowise with each of its strategies, and kube-scheduler without
topowise. Each gets the same streams of pods of mixes.json, on clusters of the same machine cut into 2 and 8 NUMA nodes.
The kubelet model of each node decides about admission. kube-scheduler takes any node of the best score (selectHost,
pkg/scheduler). Scores of topowise are those of the extender API, 0 to 10.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec

from bench.figures import Figure
from topowise import pods, quantity
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.overlay import plan
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.kube_scheduler import Container, Metadata, Pod, Spec

_FILE: Final = Path(__file__).with_name("mixes.json")


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine: `cores` of two CPUs, memory as a quantity, counts of devices and of 1 GiB hugepages."""

    cores: int
    memory: str
    devices: dict[str, int]
    pages: int


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shape of Guaranteed pods: its count in the mix, and the limits of every container."""

    count: int
    containers: tuple[dict[str, str], ...]
    source: str = ""

    def needs(self) -> pods.Needs:
        """Returns what a pod of this shape requests."""
        return pods.needs(self.pod())

    def pod(self, name: str = "new") -> Pod:
        """Returns a pod of this shape."""
        containers = tuple(
            Container(f"c{place}", pods.Resources(limits=dict(limits))) for place, limits in enumerate(self.containers)
        )
        return Pod(Metadata(name=name, namespace="bench", uid=name), Spec(containers=containers))


class Mix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`origin` names the source of the shapes, `ours` the numbers that the source does not have."""

    name: str
    title: str
    origin: str
    ours: str
    machine: Hardware
    shapes: tuple[Shape, ...]


def read() -> tuple[Mix, ...]:
    """Returns all mixes."""
    return msgspec.json.decode(_FILE.read_bytes(), type=tuple[Mix, ...])


GI: Final = 1 << 30
_SOCKETS: Final = 2


def kubelet(hardware: Hardware, zones: int, policy: str, scope: str) -> Kubelet:
    """Returns the kubelet model of an empty node."""
    return node_type(hardware, zones, policy, scope).kubelet()


def node_type(hardware: Hardware, zones: int, policy: str, scope: str) -> plan.NodeType:
    """Returns the machine, divided into equal NUMA nodes, with a core of NUMA node 0 and 1 GiB of each reserved."""
    machine = plan.regular(
        sockets=_SOCKETS,
        numa=zones,
        cores=hardware.cores,
        memory=quantity.value(hardware.memory),
        devices=hardware.devices,
        pages={1 << 20: hardware.pages},
    )
    configuration = KubeletConfiguration(
        topologyManagerPolicy=policy,
        topologyManagerScope=scope,
        cpuManagerPolicy="static",
        reservedSystemCPUs=f"0,{hardware.cores}",
        memoryManagerPolicy="Static",
        reservedMemory=tuple(MemoryReservation(zone, {"memory": "1Gi"}) for zone in range(zones)),
        systemReserved={"cpu": "2", "memory": f"{zones}Gi"},
        evictionHard={},
    )
    return plan.NodeType(machine, configuration, evidence="runs")


BESIDE: Final = "TightFit, beside kube-scheduler's scores"
BLIND: Final = ("NUMA-blind LeastAllocated", "NUMA-blind MostAllocated")
NAMES: Final = (*strategies.NAMES, BESIDE, *BLIND)


def make(name: str, ties: Random) -> plan.Scheduler:
    """Returns the scheduler with one of NAMES, which the figures carry too."""
    if name in BLIND:
        return plan.Scheduler(plan.KUBE_SCHEDULER, "least" if name == BLIND[0] else "most", ties=ties)
    strategy = "TightFit" if name == BESIDE else name
    return plan.Scheduler(strategy, is_beside=name == BESIDE, is_coarse=True, ties=ties)


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
            for place, name in enumerate(NAMES):
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
    pod_mix = next(recorded for recorded in read() if recorded.name == setting.mix)
    cut = node_type(pod_mix.machine, task.zones, setting.policy, setting.scope)
    empty = cut.kubelet()
    possible = [shape for shape in pod_mix.shapes if _fits(empty, shape.needs())]
    inventory = plan.Inventory(tuple(plan.PlannedNode(f"{number:02}", cut) for number in range(NODES)))
    workloads = [
        plan.Workload(f"shape-{number}", shape.pod(f"shape-{number}"), shape.count)
        for number, shape in enumerate(possible)
    ]
    return [filled(inventory, make(name, Random(seed)), workloads, seed) for name in NAMES]


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
