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
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.figures import Figure
from topowise import pods, quantity
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.ledger.answers import part
from topowise_scheduler.ledger.gates.gate import FITS
from topowise_scheduler.overlay import plan
from topowise_scheduler.overlay.plan.fleet import TOP, Kind, Scores
from topowise_scheduler.overlay.plan.scenario import numa_nodes_of
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


# kube-scheduler multiplies an extender's score (0 to 10) with the extender's weight and with 100 / 10.
_EXTENDER_TOP: Final = 10
_EXTENDER_WEIGHT: Final = 50
_Indices = NDArray[np.intp]


class Fleet(plan.Fleet):
    """Nodes with the scheduler that has one of NAMES, which the figures carry too. It reads the scores of an extender,
    0 to 10, and takes any of the best nodes."""

    def __init__(self, inventory: plan.Inventory, name: str, random: Random) -> None:
        strategy = plan.KUBE_SCHEDULER if name in BLIND else "TightFit" if name == BESIDE else name
        fleet = plan.fleet_of(inventory, plan.Scheduler(strategy), top_score=_EXTENDER_TOP)
        super().__init__(fleet.ledger, fleet.scheduler)
        self._name = name
        self._random = random

    def by_gates(self, kind: Kind, needs: pods.Needs, at: _Indices) -> str | None:
        """Returns any of the nodes with the best score, with kube-scheduler's own scores for BESIDE."""
        answers, question = self.ledger.answers, self.question(kind, at)
        fitting = np.flatnonzero(answers.verdicts(question).outcomes == FITS)
        if not fitting.size:
            return None
        scores = answers.scores(part(question, fitting))
        if self._name == BESIDE:
            scores = scores * _EXTENDER_WEIGHT + super().blind_scores(needs)[at[fitting]]
        return self.names[next(iter(self.ties(at[fitting][scores == scores.max()])))]

    def blind_scores(self, needs: pods.Needs) -> Scores:
        """Returns the scores of NodeResourcesFit's LeastAllocated or MostAllocated."""
        if self._name == BLIND[0]:
            return self.sums.least_allocated(needs)
        cpus, memory = [used * TOP // np.maximum(total, 1) for total, used in self.sums.shares(needs)]
        return (cpus + memory) // 2

    def ties(self, at: _Indices) -> Iterator[int]:
        """Yields the nodes in random order."""
        left = at.tolist()
        while left:
            index = self._random.choice(left)
            left.remove(index)
            yield index


class Stream(msgspec.Struct):
    """A random order of kinds of pods by their frequencies, equal for equal seeds until kinds are excluded."""

    frequencies: list[int]
    random: Random
    kinds: list[int] = []

    def __post_init__(self) -> None:
        self.kinds = list(range(len(self.frequencies)))

    def next(self) -> int:
        """Returns the index of the next kind."""
        return self.random.choices(self.kinds, self.frequencies)[0]

    def only(self, kinds: set[int]) -> None:
        """Restricts the stream from now on."""
        chosen = sorted(kinds)
        self.frequencies = [self.frequencies[self.kinds.index(kind)] for kind in chosen]
        self.kinds = chosen


class Mixed(NamedTuple):
    """A fleet that takes no further pod of a mix: `first` pods ran when the first pod fitted nowhere."""

    first: int
    placed: list[plan.Placed]


def fill(fleet: plan.Fleet, workloads: Sequence[plan.Workload], seed: int) -> Mixed:
    """Places pods of a mix in random order, each workload as often as its count says, until none of them fits."""
    kinds = [fleet.kind(workload.pod) for workload in workloads]
    stream = Stream([max(1, workload.count or 1) for workload in workloads], Random(seed))
    living, stuck = set(range(len(workloads))), set[int]()
    placed, first = list[plan.Placed](), -1
    while living - stuck:
        index = stream.next()
        if index in stuck:
            continue
        refusals = fleet.kubelet_refusals
        node = fleet.find(kinds[index])
        if first < 0 and (node is None or fleet.kubelet_refusals > refusals):
            first = len(placed)
        if node is None and fleet.may_change(kinds[index]):
            stuck.add(index)
            continue
        if node is None:
            # No pod ends, so a kind that fits nowhere never fits again.
            living.discard(index)
            if living:
                stream.only(living)
            continue
        uid = f"mix/{len(placed)}"
        fleet.bind(kinds[index], uid, ("bench", f"{workloads[index].name}-{len(placed)}"), node)
        stuck.clear()
        placed.append(plan.Placed(index, node, uid))
    return Mixed(len(placed) if first < 0 else first, placed)


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
    return [filled(inventory, name, workloads, seed) for name in NAMES]


def filled(inventory: plan.Inventory, name: str, workloads: Sequence[plan.Workload], seed: int) -> Filled:
    """Returns what runs with a scheduler of NAMES once no pod of the mix fits any more."""
    fleet = Fleet(inventory, name, Random(seed))
    mixed = fill(fleet, workloads, seed)
    zones = [count for pod in mixed.placed if (count := numa_nodes_of(fleet, pod))]
    return Filled(
        first=mixed.first,
        running=len(mixed.placed),
        refused=fleet.kubelet_refusals,
        zones=round(sum(zones) / max(1, len(zones)), 3),
    )


def _fits(empty: Kubelet, needs: pods.Needs) -> bool:
    return trial(empty, empty.view("new", needs)).admission.admitted
