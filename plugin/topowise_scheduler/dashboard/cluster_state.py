"""What the page shows of the ledger, as values.

A walk over thousands of nodes takes milliseconds, in which kube-scheduler would wait for answers: it runs in slices.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

import msgspec

from topowise.runtime.event_loop import collected, sliced
from topowise_scheduler.dashboard.decisions import Decision, Decisions
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.explain.waiting import WaitingPod, looking
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.free_amounts import zone_amounts
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.history import Precision
from topowise_scheduler.ledger.pods.records import KUBELET_REFUSALS, PodRecord

UNCERTAIN: Final = "u"
QUARANTINED: Final = "q"
DAMAGED: Final = "p"
STALE: Final = "s"
MARKS: Final = {
    UNCERTAIN: "uncertain: its newest pods may have other NUMA nodes than predicted",
    QUARANTINED: "quarantine: its kubelet has refused a pod; the next report ends it",
    DAMAGED: "damaged report: parts of it cannot be used",
    STALE: "stale report: it is not confirmed at present",
}
ANY_MARK: Final = "marked"
"""The filter for nodes with any of these marks."""

_MAX_ROWS: Final = 100
_MAX_WAITING: Final = 20


class Zone(msgspec.Struct, frozen=True, gc=False):
    """A NUMA node: cores, bytes or devices. `free` is None where no manager accounts for the resource."""

    id: int
    free: int | None
    total: int


class NodeRow(msgspec.Struct, frozen=True, gc=False):
    """A reported node; `marks` are keys of MARKS, `loss` is its fragmentation in percent, None if it is not known."""

    name: str
    policy: str
    is_exact: bool
    marks: str
    pods: int
    loss: int | None
    zones: tuple[Zone, ...]


class NodeRows(msgspec.Struct, frozen=True):
    """The first nodes that pass the filters; `matching` nodes pass them."""

    rows: tuple[NodeRow, ...]
    matching: int


class WaitingPods(msgspec.Struct, frozen=True, gc=False):
    """Pending pods of a class and a namespace, for which kube-scheduler found no node.

    `pod` is the first of `count`, `since` (RFC 3339) the start of the longest wait.
    """

    pod: str
    count: int
    priority: int
    since: str
    why: WaitingPod


class State(msgspec.Struct, frozen=True, rename="camel"):
    """The whole page but the rows of nodes and the panel. `problem` says why the service is not ready."""

    problem: str
    resources: tuple[str, ...]
    reported: int
    known: int
    unreported: tuple[str, ...]
    counters: dict[str, int]
    waiting: tuple[WaitingPods, ...]
    waiting_count: int
    refused: tuple[Decision, ...]
    quarantined: frozenset[str]
    decisions: tuple[Decision, ...]


class Reader:
    """Reads the state of a service."""

    def __init__(
        self,
        ledger: Ledger,
        view: ClusterView,
        decisions: Decisions,
        problem: Callable[[], str | None],
        loss: Callable[[str], int | None],
    ) -> None:
        self._ledger = ledger
        self._view = view
        self._decisions = decisions
        self._problem = problem
        self._loss = loss

    async def state(self) -> State:
        """The present state."""
        ledger = self._ledger
        names = ledger.node_states.reported()
        return State(
            problem=self._problem() or "",
            resources=await self._resources(names),
            reported=len(names),
            known=len(ledger.reports.nodes),
            unreported=tuple(sorted(ledger.reports.nodes - set(names))),
            counters=_counters(ledger),
            waiting=await self._waiting(),
            waiting_count=len(ledger.without_node),
            refused=self._decisions.refused,
            quarantined=frozenset(ledger.gates.quarantine.all_nodes),
            decisions=self._decisions.all(),
        )

    async def nodes(self, resource: str, name: str, mark: str) -> NodeRows:
        """The rows of nodes whose name contains `name`, with this mark, ANY_MARK, or any other text for no filter."""
        names = [text for text in self._ledger.node_states.reported() if name.lower() in text.lower()]
        if mark == ANY_MARK or mark in MARKS:
            names = await collected(self._with_mark(names, mark))
        rows = [row for row in (self._row(text, resource) for text in names[:_MAX_ROWS]) if row is not None]
        return NodeRows(tuple(rows), len(names))

    def marks(self, name: str) -> str:
        """The marks of a node, as keys of MARKS."""
        node_state = self._ledger.node_states.of(name)
        is_damaged = node_state is not None and node_state.report is not None and bool(node_state.report.problems)
        marks = {
            UNCERTAIN: name in self._ledger.node_states.possible,
            QUARANTINED: name in self._ledger.gates.quarantine.all_nodes,
            DAMAGED: is_damaged,
            STALE: bool(self._ledger.gates.unconfirmed.why(name)),
        }
        return "".join([mark for mark, applies in marks.items() if applies])

    def _with_mark(self, names: Sequence[str], mark: str) -> Iterator[str | None]:
        for name in names:
            marks = self.marks(name)
            yield name if marks and (mark == ANY_MARK or mark in marks) else None

    def _row(self, name: str, resource: str) -> NodeRow | None:
        node_state = self._ledger.node_states.of(name)
        if node_state is None or node_state.report is None or node_state.kubelet is None:
            return None
        return NodeRow(
            name=name,
            policy=node_state.kubelet.settings.topology.policy,
            is_exact=node_state.report.precision == "exact",
            marks=self.marks(name),
            pods=node_state.history.count,
            loss=self._loss(name),
            zones=zones(node_state.kubelet, resource),
        )

    async def _resources(self, names: Sequence[str]) -> tuple[str, ...]:
        resources = {"cpu"}

        def walk() -> Iterator[None]:
            for name in names:
                node_state = self._ledger.node_states.of(name)
                if node_state is not None and node_state.kubelet is not None:
                    resources.update(node_state.kubelet.devices.tables)
                    if node_state.kubelet.memory is not None:
                        tables = node_state.kubelet.memory.policy.allocatable
                        resources.update(kind for kind, sizes in tables.items() if kind == "memory" or any(sizes))
                yield

        await sliced(walk())
        return tuple(sorted(resources, key=lambda resource: (resource != "cpu", resource != "memory", resource)))

    async def _waiting(self) -> tuple[WaitingPods, ...]:
        """Pods of a class as an entry, by priority and then by age; only the first entries are evaluated."""
        classes: dict[tuple[Hashable, str], list[PodRecord]] = {}
        for record in self._ledger.without_node.values():
            classes.setdefault((record.pod_class, record.namespace), []).append(record)
        first = heapq.nsmallest(
            _MAX_WAITING, classes.values(), key=lambda records: (-records[0].priority, _oldest(records))
        )
        entries = []
        for records in first:
            record = records[0]
            (why,) = await collected(looking(self._view, record))
            entries.append(
                WaitingPods(f"{record.namespace}/{record.name}", len(records), record.priority, _oldest(records), why)
            )
        return tuple(entries)


def zones(kubelet: Kubelet, resource: str) -> tuple[Zone, ...]:
    """The NUMA nodes of a machine with their free amounts; none if the machine does not have the resource."""
    # The memory manager's table goes below zero where a report has less than the pods hold.
    amounts = [(None if free is None else max(0, free), total) for free, total in zone_amounts(kubelet, resource)]
    return tuple([Zone(numa, free, total) for numa, (free, total) in zip(kubelet.node_ids, amounts, strict=False)])


def _oldest(records: Sequence[PodRecord]) -> str:
    return min(record.status.started for record in records)


def _counters(ledger: Ledger) -> dict[str, int]:
    """Events since the start of the service, and present numbers."""
    events = ledger.events
    return {
        **{precision.name: events[f"prediction_{precision.label}"] for precision in Precision},
        "refusals": sum(events[f"refusal_{reason}"] for reason in KUBELET_REFUSALS),
        "bindConflicts": events["bind_conflict"],
        "openReservations": len(ledger.reservations),
        "uncertain": ledger.node_states.possible.pods,
        "quarantines": len(ledger.gates.quarantine),
    }
