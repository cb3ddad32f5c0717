"""What the ledger knows, as the page shows it: plain values.

Reading thousands of nodes takes some milliseconds, which kube-scheduler would have to wait for: it is done in slices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from topowise.attributes import POLICIES
from topowise.pods import HUGEPAGES
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.node_state import NodeState
from topowise_scheduler.cluster.records import KUBELET_REFUSALS
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ui.decisions import Decision, Decisions

UNCERTAIN: Final = "u"
QUARANTINED: Final = "q"
DAMAGED: Final = "p"
MARKS: Final = {
    UNCERTAIN: "uncertain: its newest pods may lie elsewhere than predicted",
    QUARANTINED: "quarantine: its kubelet has refused a pod, a new report is awaited",
    DAMAGED: "parts of its report cannot be used",
}

_MIB: Final = 1 << 20
_SLICE_S: Final = 0.002
_MAX_NAMES: Final = 20
_MAX_WAITING: Final = 50


class Zone(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A NUMA node: CPUs, MiB or devices. `free` is None where nobody keeps count."""

    id: int
    free: int | None
    total: int


class Node(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A reported node. `policy` is a place in POLICIES, `marks` are letters of MARKS.

    `seen` is when its present report came, in seconds since 1970; 0 for one that was there before the dashboard.
    """

    name: str
    policy: int
    is_exact: bool
    marks: str
    pods: int
    seen: int
    zones: tuple[Zone, ...]


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A pending pod that was refused here; `since` is RFC 3339."""

    pod: str
    priority: int
    since: str


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
    decisions: tuple[Decision, ...]


class Sightings:
    """When the present report of each node was first seen. `clock` gives seconds since 1970."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._seen: dict[str, tuple[object, int]] = {}
        self._is_first = True

    def update(self) -> None:
        """To be called every second or so: a walk over the names."""
        now = int(self._clock())
        found: dict[str, tuple[object, int]] = {}
        for name in self._ledger.reported():
            node_state = self._ledger.node_state(name)
            report = None if node_state is None else node_state.report
            before = self._seen.get(name)
            if before is not None and before[0] is report:
                found[name] = before
            elif report is not None:
                found[name] = (report, 0 if self._is_first else now)
        self._seen = found
        self._is_first = self._is_first and not found

    def of(self, name: str) -> int:
        """Seconds since 1970, 0 if it is not known."""
        return self._seen.get(name, (None, 0))[1]


class Reader:
    """Reads states of one service."""

    def __init__(
        self, ledger: Ledger, decisions: Decisions, sightings: Sightings, problem: Callable[[], str | None]
    ) -> None:
        self._ledger = ledger
        self._decisions = decisions
        self._sightings = sightings
        self._problem = problem

    async def read(self, resource: str) -> State:
        """The present state, with all decisions; an unknown resource is shown as CPUs."""
        ledger = self._ledger
        names = ledger.reported()
        resources = await self._resources(names)
        if resource not in resources:
            resource = "cpu"
        marked = self.quarantined()
        nodes = []
        begun = time.perf_counter()
        for name in names:
            node_state = ledger.node_state(name)
            if node_state is not None and node_state.report is not None and node_state.kubelet is not None:
                nodes.append(self._node(name, node_state, node_state.kubelet, resource, marked))
            begun = await let_others_go_first(begun)
        unreported = sorted(ledger.known - set(names))
        waiting = sorted(ledger.waiting.values(), key=lambda one: (-one.priority, one.started, one.uid))
        return State(
            problem=self._problem() or "",
            resource=resource,
            unit=unit_of(resource),
            resources=resources,
            policies=tuple(POLICIES),
            nodes=tuple(nodes),
            known=len(ledger.known),
            unreported=tuple(unreported[:_MAX_NAMES]),
            unreported_count=len(unreported),
            counters=counters(ledger),
            waiting=tuple(
                [Waiting(f"{one.namespace}/{one.name}", one.priority, one.started) for one in waiting[:_MAX_WAITING]]
            ),
            waiting_count=len(waiting),
            decisions=self._decisions.all(),
        )

    def quarantined(self) -> set[str]:
        """Nodes whose kubelet has refused a pod like one that waits or was decided lately."""
        shapes = {*self._decisions.shapes, *(record.shape for record in self._ledger.waiting.values())}
        return {name for shape in shapes for name in self._ledger.quarantined(shape)}

    def marks(self, name: str, node_state: NodeState, quarantined: Iterable[str]) -> str:
        """The letters of what is the matter with a node."""
        found = UNCERTAIN if name in self._ledger.possible else ""
        found += QUARANTINED if name in quarantined else ""
        return found + (DAMAGED if node_state.report is not None and node_state.report.problems else "")

    async def _resources(self, names: Sequence[str]) -> tuple[str, ...]:
        found = {"cpu"}
        begun = time.perf_counter()
        for name in names:
            node_state = self._ledger.node_state(name)
            if node_state is not None and node_state.kubelet is not None:
                found |= node_state.kubelet.devices.tables.keys()
                if node_state.kubelet.memory is not None:
                    tables = node_state.kubelet.memory.policy.allocatable
                    found |= {kind for kind, sizes in tables.items() if kind == "memory" or any(sizes)}
            begun = await let_others_go_first(begun)
        return tuple(sorted(found, key=_order))

    def _node(self, name: str, node_state: NodeState, kubelet: Kubelet, resource: str, quarantined: set[str]) -> Node:
        return Node(
            name=name,
            policy=POLICIES.index(kubelet.settings.topology.policy),
            is_exact=node_state.report is not None and node_state.report.precision == "exact",
            marks=self.marks(name, node_state, quarantined),
            pods=len(node_state.bookings),
            seen=self._sightings.of(name),
            zones=zones(kubelet, resource),
        )


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
        "openReservations": ledger.open_reservations,
        "uncertain": ledger.possible.pods,
        "quarantines": ledger.quarantines,
    }


async def let_others_go_first(begun: float) -> float:
    """Let others go first if this has taken long enough; when the present slice began."""
    if time.perf_counter() - begun < _SLICE_S:
        return begun
    await asyncio.sleep(0)
    return time.perf_counter()


def _order(resource: str) -> tuple[int, str]:
    return (0 if resource == "cpu" else 1 if resource == "memory" else 2), resource
