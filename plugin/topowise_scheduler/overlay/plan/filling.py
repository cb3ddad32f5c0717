"""Fills a fleet: the copies of workloads, and the pods of a trace in time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from topowise_scheduler.overlay.plan.fleet import Fleet, Kind
from topowise_scheduler.overlay.plan.values import Arrival, Waits, Workload, WorkloadResult
from topowise_scheduler.verdicts.refusals import Reason

MOST_PODS: Final = 1_000_000
"""Pods that a plan places at most, so that a workload without requests ends."""

Control = Callable[[str, int, int], bool]
"""Called for each pod with a text, the number of done steps and of all steps; returns whether to stop."""


def go_on(text: str, done: int, total: int) -> bool:
    """A control that never stops a plan."""
    return False


class Placed(NamedTuple):
    """A pod that was placed: its workload's index, and its node."""

    workload: int
    node: str
    uid: str


class Filled(NamedTuple):
    """The results of workloads, the placed pods, and whether all pods were tried."""

    workloads: list[WorkloadResult]
    placed: list[Placed]
    is_complete: bool


def place_all(fleet: Fleet, workloads: Sequence[Workload], control: Control = go_on, prefix: str = "plan") -> Filled:
    """Places the copies of all workloads, by priority and then in order."""
    total = sum(workload.count or 0 for workload in workloads)
    placed: list[Placed] = []
    counts, kinds = [0] * len(workloads), [fleet.kind(workload.pod) for workload in workloads]
    is_complete = True
    for index in sorted(range(len(workloads)), key=lambda at: -workloads[at].priority):
        workload, kind = workloads[index], kinds[index]
        for number, node in _nodes_for(fleet, workload, kind):
            uid = f"{prefix}/{index}/{number}"
            fleet.bind(kind, uid, _name(workload, number), node)
            counts[index] += 1
            placed.append(Placed(index, node, uid))
            if control("pod", len(placed), total):
                is_complete = False
                break
        if not is_complete:
            break
    # Pods of a kind have the same reasons, and each of them is of all nodes.
    reasons: dict[int, dict[Reason, int]] = {}
    for workload, kind, count in zip(workloads, kinds, counts, strict=True):
        if count != workload.count and not workload.is_on_every_node and id(kind) not in reasons:
            reasons[id(kind)] = fleet.why(kind)
    results = [
        WorkloadResult(
            workload.name,
            count if workload.is_on_every_node else workload.count,
            count,
            {} if count == workload.count or workload.is_on_every_node else reasons[id(kind)],
        )
        for workload, kind, count in zip(workloads, kinds, counts, strict=True)
    ]
    return Filled(results, placed, is_complete)


def _nodes_for(fleet: Fleet, workload: Workload, kind: Kind) -> Iterator[tuple[int, str]]:
    """Yields a number and a node for each copy; the caller binds the copy there before the next."""
    if workload.is_on_every_node:
        fits = fleet.fits_on(kind)
        yield from ((at, fleet.names[at]) for at in fits.nonzero()[0].tolist())
        return
    for number in range(MOST_PODS if workload.count is None else min(workload.count, MOST_PODS)):
        node = fleet.find(kind)
        if node is None:
            # If a pod does not fit, further copies of it do not fit either.
            return
        yield number, node


def _name(workload: Workload, number: int) -> tuple[str, str]:
    metadata = workload.pod.metadata
    name = metadata.name if workload.count == 1 and not workload.is_on_every_node else f"{metadata.name}-{number}"
    return metadata.namespace or "default", name


class Played(NamedTuple):
    """The outcome of a trace: waiting times, results by workload, and unit seconds of each resource that ran."""

    waits: Waits
    workloads: list[WorkloadResult]
    busy: dict[str, float]
    placed: list[Placed]
    is_complete: bool


class _Queue:
    """Waiting pods by kind; pods of a kind start in the order of their arrival."""

    def __init__(self) -> None:
        self.by_kind: dict[int, tuple[Kind, int, deque[tuple[int, Arrival]]]] = {}

    def put(self, number: int, arrival: Arrival, kind: Kind) -> None:
        entry = self.by_kind.setdefault(id(kind), (kind, arrival.workload.priority, deque()))
        entry[2].append((number, arrival))

    def in_order(self) -> list[tuple[Kind, deque[tuple[int, Arrival]]]]:
        """The kinds that wait: the highest priority first, then the oldest pod."""
        waiting = [entry for entry in self.by_kind.values() if entry[2]]
        waiting.sort(key=lambda entry: (-entry[1], entry[2][0][0]))
        return [(kind, arrivals) for kind, _, arrivals in waiting]


class _Trace:
    """The state of a trace that is played."""

    def __init__(self, fleet: Fleet, arrivals: Sequence[Arrival]) -> None:
        self.fleet = fleet
        self.arrivals = sorted(arrivals, key=lambda arrival: arrival.at)
        self.queue = _Queue()
        self.ends: list[tuple[float, int, str]] = []
        self.waits: list[float] = []
        self.busy: dict[str, float] = {}
        self.running: dict[str, Placed] = {}
        self.now = 0.0
        self.names: dict[str, int] = {}
        self.asked: list[int] = []
        self.placed: list[int] = []
        self.kinds: dict[str, Kind] = {}

    def workload(self, workload: Workload) -> int:
        index = self.names.setdefault(workload.name, len(self.names))
        if index == len(self.asked):
            self.asked.append(0)
            self.placed.append(0)
            self.kinds[workload.name] = self.fleet.kind(workload.pod)
        return index

    def start(self, number: int, arrival: Arrival, kind: Kind, node: str) -> None:
        uid = f"trace/{number}"
        metadata = arrival.workload.pod.metadata
        # Two pods of a node must not have the same name.
        self.fleet.bind(kind, uid, (metadata.namespace or "default", f"{metadata.name}-{number}"), node)
        index = self.names[arrival.workload.name]
        self.placed[index] += 1
        self.running[uid] = Placed(index, node, uid)
        self.waits.append(self.now - arrival.at)
        if arrival.duration is not None:
            heapq.heappush(self.ends, (self.now + arrival.duration, number, uid))
            for name, amount in (kind.needs.requests if kind.needs else {}).items():
                self.busy[name] = self.busy.get(name, 0.0) + amount * arrival.duration

    def serve(self) -> None:
        """Starts every waiting pod that fits now."""
        is_moving = True
        while is_moving:
            is_moving = False
            for kind, arrivals in self.queue.in_order():
                while arrivals:
                    node = self.fleet.find(kind)
                    if node is None:
                        break
                    number, arrival = arrivals.popleft()
                    self.start(number, arrival, kind, node)
                    is_moving = True

    def end_until(self, moment: float) -> None:
        """Ends the pods that end up to a moment; waiting pods start at each end."""
        while self.ends and self.ends[0][0] <= moment:
            self.now = self.ends[0][0]
            while self.ends and self.ends[0][0] <= self.now:
                _, _, uid = heapq.heappop(self.ends)
                self.fleet.end(uid)
                del self.running[uid]
            self.serve()

    def arrive(self, number: int, arrival: Arrival) -> None:
        index = self.workload(arrival.workload)
        self.asked[index] += 1
        kind = self.kinds[arrival.workload.name]
        waiting = self.queue.by_kind.get(id(kind))
        node = self.fleet.find(kind) if waiting is None or not waiting[2] else None
        if node is None:
            self.queue.put(number, arrival, kind)
        else:
            self.start(number, arrival, kind, node)


def play(fleet: Fleet, arrivals: Sequence[Arrival], control: Control = go_on) -> Played:
    """Plays a trace: pods come and end in time, and a pod that fits nowhere waits for the end of other pods.

    A waiting pod does not keep later pods from starting, as in kube-scheduler.
    """
    trace, is_complete = _Trace(fleet, arrivals), True
    for number, arrival in enumerate(trace.arrivals):
        trace.end_until(arrival.at)
        trace.now = max(trace.now, arrival.at)
        trace.arrive(number, arrival)
        if control("pod of the trace", number + 1, len(trace.arrivals)):
            is_complete = False
            break
    if is_complete:
        while trace.ends:
            trace.end_until(trace.ends[0][0])
            if control("end of the trace", len(trace.arrivals), len(trace.arrivals)):
                is_complete = False
                break
    results = [
        WorkloadResult(
            name,
            trace.asked[index],
            trace.placed[index],
            {} if trace.asked[index] == trace.placed[index] else fleet.why(trace.kinds[name]),
        )
        for name, index in trace.names.items()
    ]
    never = sum(len(waiting) for _, waiting in trace.queue.in_order())
    waits = sorted(trace.waits)
    summary = Waits(len(waits), never, _share(waits, 0.5), _share(waits, 0.95), waits[-1] if waits else 0.0, trace.now)
    return Played(summary, results, trace.busy, list(trace.running.values()), is_complete)


def _share(values: Sequence[float], share: float) -> float:
    """Returns the least of sorted values that is at least as large as this share of all values."""
    return values[max(0, -(-int(len(values) * share * 100) // 100) - 1)] if values else 0.0
