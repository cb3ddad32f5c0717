"""What the ledger knows, as the page shows it: plain values.

Reading thousands of nodes takes some milliseconds, which kube-scheduler would have to wait for: it is done in slices.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from topowise import quantity
from topowise.attributes import POLICIES
from topowise.pods import HUGEPAGES
from topowise.runtime.turns import sliced
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.node.node_state import NodeState
from topowise_scheduler.cluster.pods.records import KUBELET_REFUSALS, PodRecord
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.presentation.dashboard.decisions import Decision, Decisions, reasons_of
from topowise_scheduler.presentation.explain import fragmentation

UNCERTAIN: Final = "u"
QUARANTINED: Final = "q"
DAMAGED: Final = "p"
MARKS: Final = {
    UNCERTAIN: "uncertain: its newest pods may lie elsewhere than predicted",
    QUARANTINED: "quarantine: its kubelet has refused a pod, a new report is awaited",
    DAMAGED: "parts of its report cannot be used",
}

FRAGMENTED: Final = 50
"""Percent from which on a node counts as fragmented."""

_MIB: Final = 1 << 20
_SLICE_S: Final = 0.002
_MAX_NAMES: Final = 20
_MAX_WAITING: Final = 20


class Zone(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A NUMA node: CPUs, MiB or devices. `free` is None where nobody keeps count."""

    id: int
    free: int | None
    total: int


class Node(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A reported node. `policy` is a place in POLICIES, `marks` are letters of MARKS.

    `seen` is when its present report came, in seconds since 1970; 0 for one that was there before the dashboard. `lost`
    is the percent that fragmentation takes (explain/fragmentation.py), None where nothing is free, counted or aligned.
    """

    name: str
    policy: int
    is_exact: bool
    marks: str
    pods: int
    seen: int
    zones: tuple[Zone, ...]
    lost: int | None = None

    @property
    def most(self) -> int:
        """What the NUMA node has that has most of it."""
        return max([zone.free or 0 for zone in self.zones], default=0)


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """Pending pods that were refused here and ask for the same; `since` is RFC 3339, of the one that waits longest.

    `pod` is the first of `count`. By the nodes as they are now they fit on `fits`, and `reasons` are what is against
    the others.
    """

    pod: str
    count: int
    priority: int
    since: str
    fits: int
    reasons: dict[str, int]


class State(msgspec.Struct, frozen=True, rename="camel"):
    """All that the page shows without being asked for more."""

    problem: str
    resource: str
    unit: str
    resources: tuple[str, ...]
    policies: tuple[str, ...]
    nodes: tuple[Node, ...]
    known: int
    unreported: tuple[str, ...]
    unreported_count: int
    counters: dict[str, int]
    waiting: tuple[Waiting, ...]
    waiting_count: int
    refused: tuple[Decision, ...]
    quarantined: frozenset[str]
    decisions: tuple[Decision, ...]


class Sightings:
    """When the present report of each node was first seen. `clock` gives seconds since 1970."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        # By node the version of its object, as the report is made anew when the Node tells of another kubelet.
        self._seen: dict[str, tuple[str, int]] = {}
        self._is_first = True

    def begin(self) -> None:
        """Somebody looks: whatever comes after this is new to them."""
        if self._is_first:
            self.update()

    def update(self) -> None:
        """To be called every second or so: a walk over the names."""
        now = int(self._clock())
        found: dict[str, tuple[str, int]] = {}
        for name in self._ledger.node_states.reported():
            node_state = self._ledger.node_states.of(name)
            report = None if node_state is None else node_state.report
            before = self._seen.get(name)
            if report is None:
                continue
            if before is not None and before[0] == report.version:
                found[name] = before
            else:
                found[name] = report.version, 0 if self._is_first else now
        self._seen = found
        self._is_first = self._is_first and not found

    def of(self, name: str) -> int:
        """Seconds since 1970, 0 if it is not known."""
        return self._seen.get(name, ("", 0))[1]


class Reader:
    """Reads states of one service."""

    def __init__(
        self,
        ledger: Ledger,
        answers: Answers,
        decisions: Decisions,
        sightings: Sightings,
        problem: Callable[[], str | None],
    ) -> None:
        self._ledger = ledger
        self._answers = answers
        self._decisions = decisions
        self._sightings = sightings
        self._problem = problem

    async def read(self, resource: str) -> State:
        """The present state, with all decisions; an unknown resource is shown as CPUs."""
        ledger = self._ledger
        names = ledger.node_states.reported()
        resources = await self._resources(names)
        if resource not in resources:
            resource = "cpu"
        marks = self.marks(names)
        nodes = []
        begun = time.perf_counter()
        for name in names:
            node_state = ledger.node_states.of(name)
            if node_state is not None and node_state.report is not None and node_state.kubelet is not None:
                nodes.append(self._node(name, node_state, node_state.kubelet, resource, marks.get(name, "")))
            begun = await let_others_go_first(begun)
        unreported = sorted(ledger.reports.nodes - set(names))
        return State(
            problem=self._problem() or "",
            resource=resource,
            unit=unit_of(resource),
            resources=resources,
            policies=tuple(POLICIES),
            nodes=tuple(nodes),
            known=len(ledger.reports.nodes),
            unreported=tuple(unreported[:_MAX_NAMES]),
            unreported_count=len(unreported),
            counters=counters(ledger),
            waiting=await self._waiting(names),
            waiting_count=len(ledger.waiting),
            refused=self._decisions.refused,
            quarantined=frozenset(ledger.gates.quarantine.all_nodes),
            decisions=self._decisions.all(),
        )

    def marks(self, names: Sequence[str]) -> dict[str, str]:
        """The letters of what is the matter with nodes, of those with which something is."""
        uncertain, quarantined = self._ledger.node_states.possible, self._ledger.gates.quarantine.all_nodes
        found = {}
        for name in names:
            node_state = self._ledger.node_states.of(name)
            is_damaged = node_state is not None and node_state.report is not None and bool(node_state.report.problems)
            letters = (UNCERTAIN, name in uncertain), (QUARANTINED, name in quarantined), (DAMAGED, is_damaged)
            mark = "".join([letter for letter, applies in letters if applies])
            if mark:
                found[name] = mark
        return found

    async def _resources(self, names: Sequence[str]) -> tuple[str, ...]:
        found = {"cpu"}
        begun = time.perf_counter()
        for name in names:
            node_state = self._ledger.node_states.of(name)
            if node_state is not None and node_state.kubelet is not None:
                found |= node_state.kubelet.devices.tables.keys()
                if node_state.kubelet.memory is not None:
                    tables = node_state.kubelet.memory.policy.allocatable
                    found |= {kind for kind, sizes in tables.items() if kind == "memory" or any(sizes)}
            begun = await let_others_go_first(begun)
        return tuple(sorted(found, key=_order))

    async def _waiting(self, names: Sequence[str]) -> tuple[Waiting, ...]:
        """By kind, the most important and then the oldest first; what is against them is looked up for these alone."""
        kinds: dict[tuple[bytes, int, str], list[PodRecord]] = {}
        for record in self._ledger.waiting.values():
            kinds.setdefault((record.shape, record.priority, record.namespace), []).append(record)
        found = []
        first = heapq.nsmallest(_MAX_WAITING, kinds.values(), key=lambda those: (-those[0].priority, _oldest(those)))
        for those in first:
            one = those[0]
            await sliced(self._answers.fitting(one, names))
            reasons, _ = reasons_of(names, self._answers.verdicts_of(one, names))
            found.append(
                Waiting(
                    pod=f"{one.namespace}/{one.name}",
                    count=len(those),
                    priority=one.priority,
                    since=_oldest(those),
                    fits=len(names) - sum(reasons.values()),
                    reasons=reasons,
                )
            )
            await asyncio.sleep(0)
        return tuple(found)

    def _node(self, name: str, node_state: NodeState, kubelet: Kubelet, resource: str, marks: str) -> Node:
        policy = kubelet.settings.topology.policy
        mine = zones(kubelet, resource)
        return Node(
            name=name,
            policy=POLICIES.index(policy),
            is_exact=node_state.report is not None and node_state.report.precision == "exact",
            marks=marks,
            pods=node_state.history.count,
            seen=self._sightings.of(name),
            zones=mine,
            lost=None if policy == "none" else _lost(mine),
        )


def _lost(mine: Sequence[Zone]) -> int | None:
    return fragmentation.lost([zone.free or 0 for zone in mine], max([zone.total for zone in mine], default=0))


def _oldest(those: Sequence[PodRecord]) -> str:
    return min(one.started for one in those)


def zones(kubelet: Kubelet, resource: str) -> tuple[Zone, ...]:
    """What each NUMA node of a machine has free of a resource; none if it has nothing of it at all."""
    amounts: list[tuple[int | None, int]]
    if resource == "cpu":
        usable = kubelet.topology.numa_cpus
        if kubelet.cpu is None:
            amounts = [(None, cpus.bit_count()) for cpus in usable]
        else:
            reserved, available = kubelet.cpu.policy.reserved, kubelet.cpu.available
            amounts = [((cpus & available).bit_count(), (cpus & ~reserved).bit_count()) for cpus in usable]
    elif resource == "memory" or resource.startswith(HUGEPAGES):
        if kubelet.memory is None or resource not in kubelet.memory.policy.allocatable:
            return ()
        free, allocatable = kubelet.memory.tables.free[resource], kubelet.memory.policy.allocatable[resource]
        amounts = [(max(0, have) // _MIB, total // _MIB) for have, total in zip(free, allocatable, strict=True)]
    else:
        table = kubelet.devices.tables.get(resource)
        if table is None:
            return ()
        open_ones = kubelet.devices.free(resource)
        amounts = [((near & open_ones).bit_count(), (near & table.healthy).bit_count()) for near in table.near]
    return tuple([Zone(node, have, total) for node, (have, total) in zip(kubelet.node_ids, amounts, strict=True)])


def unit_of(resource: str) -> str:
    """The unit that amounts of a resource are shown in."""
    if resource == "cpu":
        return "CPUs"
    return "MiB" if resource == "memory" or resource.startswith(HUGEPAGES) else "devices"


def amount(number: int, unit: str) -> str:
    """An amount for people."""
    return quantity.human_bytes(number * _MIB) if unit == "MiB" else str(number)


def counters(ledger: Ledger) -> dict[str, int]:
    """What happened since the service started, and how much is open now."""
    events = ledger.events
    return {
        "predictionHits": events["prediction_hit"],
        "predictionMisses": events["prediction_miss"],
        **{reason: events[f"refusal_{reason}"] for reason in sorted(KUBELET_REFUSALS)},
        "bindConflicts": events["bind_conflict"],
        "reservationsExpired": events["reservation_expired"],
        "requeued": events["requeued"],
        "openReservations": len(ledger.reservations),
        "uncertain": ledger.node_states.possible.pods,
        "quarantines": len(ledger.gates.quarantine),
    }


async def let_others_go_first(begun: float) -> float:
    """Let others go first if this has taken long enough; when the present slice began."""
    if time.perf_counter() - begun < _SLICE_S:
        return begun
    await asyncio.sleep(0)
    return time.perf_counter()


def _order(resource: str) -> tuple[int, str]:
    return (0 if resource == "cpu" else 1 if resource == "memory" else 2), resource
