"""Which pods of a node may lie elsewhere than predicted, by what is known of the order of events.

The kubelet admitted a pod between its Binding and the event that acknowledges the pod. It released a pod up to `LATE_S`
before the service heard of the end. Events whose windows overlap may have come in either order (event_orders.py).

The window of a pod is settled `LATE_S` after its acknowledgement: the service has heard of every end before it. Until
then an end of which the service has not heard may come first, so that the pod may lie on any NUMA node.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import inf
from typing import NamedTuple

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.node.history import EARLY_S, ENDED_KEPT_S, LATE_S, Ended, Entry, History
from topowise_scheduler.ledger.node.pod_parts import has_choice_of_devices, holds_own, is_of_any_size, position_of
from topowise_scheduler.ledger.pods.pod_states import BookingState


class Window(NamedTuple):
    """The first and the last moment at which the kubelet may have handled an event: seconds, monotonic."""

    first: float
    last: float

    def is_before(self, later: Window) -> bool:
        """Returns whether this event surely came before the other event."""
        return self.last < later.first


class Doubts(NamedTuple):
    """`open` pods may lie on any NUMA node. `settled` pods lie where some order of the known events puts them."""

    open: Sequence[Entry] = ()
    settled: Sequence[Entry] = ()


def doubts(history: History, node: Kubelet, now: float) -> Doubts:
    """Returns the pods that may lie elsewhere than predicted; `now` is in seconds, monotonic."""
    predicted = [
        entry
        for entry in chain(history.log, history.expected)
        if _is_predicted(entry, now) and holds_own(node, entry.record.seen(node)) and not is_chosen(entry, node)
    ]
    if not predicted:
        return Doubts()
    # Devices near several NUMA nodes stay undecided however much time passes.
    opened = [entry for entry in predicted if _is_open(entry, now) or has_choice(entry, node)]
    if len(opened) == len(predicted):
        # The common case: reports confirm most pods before their windows are settled.
        return Doubts(opened)
    overlapping = _overlapping(history, node)
    doubted = [entry.seen.since for entry in opened if entry.is_bound]
    doubted += [entry.seen.since for entry in overlapping.values()]
    # A pod that came later was predicted beside a pod that may lie elsewhere.
    first = min(doubted, default=inf)
    known = {entry.uid for entry in opened}
    return Doubts(
        opened,
        [
            entry
            for entry in predicted
            if entry.uid not in known and (entry.uid in overlapping or entry.seen.since > first)
        ],
    )


def has_choice(entry: Entry, node: Kubelet) -> bool:
    """Returns whether the kubelet or a device plugin chooses among devices for the pod."""
    return has_choice_of_devices(node, entry.record.seen(node))


def admission_window(entry: Entry, ended: Ended | None = None) -> Window:
    """Returns when the kubelet may have admitted a bound pod that may have ended."""
    seen = entry.seen
    last = inf if ended is None else ended.at
    return Window(
        -inf if seen.was_there else seen.since - EARLY_S, last if seen.acknowledged is None else seen.acknowledged
    )


def end_window(ended: Ended) -> Window:
    """Returns when the kubelet may have released a pod."""
    # The kubelet removes a pod before the API server has its last status.
    return Window(ended.at - LATE_S, ended.at)


def is_settled(entry: Entry, now: float) -> bool:
    """Returns whether the service knows every event that came before the admission of the pod."""
    acknowledged = entry.seen.acknowledged
    return acknowledged is not None and now - acknowledged >= LATE_S and not entry.seen.was_there


def may_change_between(history: History, first: float, last: float) -> bool:
    """Returns whether time alone may change the doubts of a node between these moments: a window is settled, a pod
    has been seen, or an unreported pod counts as never reported."""
    for entry in history.log:
        acknowledged = entry.seen.acknowledged
        # Most pods are older than the longest of these times, and the question comes every second for every node.
        if acknowledged is None or acknowledged + ENDED_KEPT_S < first:
            continue
        if any(first <= acknowledged + limit <= last for limit in (EARLY_S, LATE_S, ENDED_KEPT_S)):
            return True
    return False


def highest(history: History, states: Sequence[Kubelet], now: float, *, is_alone: bool) -> dict[str, int]:
    """Returns by UID the highest position of a NUMA node at which a pod may lie in these states of the node.

    This holds if only ends came between decision and admission, which move pods to lower positions. The lowest NUMA
    node that will do depends on unlike pods before it: where such a pod has ended unreported, any position is possible,
    and the number of positions is returned.
    Unless this service `is_alone` in binding pods, another pod may have come first, until its Binding has been seen.
    From amounts alone a prediction is not exact enough.
    """
    report = history.report
    if report is None or report.precision != "exact":
        return {}
    anywhere = len(states[0].node_ids)
    # A pod that was there when an unreported pod ended may have been placed beside that pod. Where the fullest NUMA
    # node is taken, any pod that ended may have filled it.
    is_fullest = states[0].settings.topology.prefer_most_allocated
    unseen = max((ended.turn for ended in history.ended if ended.was_predicted or is_fullest), default=0)
    positions: dict[str, int] = {}
    for entry in chain(history.log, history.expected):
        acknowledged = entry.seen.acknowledged
        is_seen = is_alone or (acknowledged is not None and now - acknowledged >= EARLY_S)
        # A pod from before the service has no decision of the service that bounds its position.
        if is_seen and entry.uid in states[0].active and not entry.seen.was_there:
            at = [position_of(state, state.placements(entry.uid)) for state in states if entry.uid in state.active]
            positions[entry.uid] = anywhere if entry.turn < unseen else max(at)
    return positions


def is_chosen(entry: Entry, node: Kubelet) -> bool:
    """Returns whether the service has chosen the NUMA node of the pod and knows the amounts that the pod gets there.

    The kubelet then has no other hint, whatever pods have ended before. A reserved pod that requires a NUMA node is
    bound with the label or not at all.
    """
    is_steered = entry.state is not BookingState.NOMINATED and entry.record.steered is not None
    return is_steered and not (has_choice(entry, node) or is_of_any_size(node, entry.record.seen(node)))


def unreported(history: History) -> list[Entry]:
    """Returns the pods that ended without a report of them, and that the last report does not list."""
    held = {} if history.report is None else history.report.held
    ended = [end.entry for end in history.ended if end.was_predicted]
    return [entry for entry in ended if entry.name not in held and ("", entry.uid) not in held]


def _is_predicted(entry: Entry, now: float) -> bool:
    """Returns whether nothing but the prediction tells where the pod lies.

    A pod that was not reported for so long after its admission never will be: the exporter leaves it out.
    """
    if entry.seen.listed is not None or entry.state is BookingState.NOMINATED:
        return False
    acknowledged = entry.seen.acknowledged
    return acknowledged is None or now - acknowledged <= ENDED_KEPT_S


def _is_open(entry: Entry, now: float) -> bool:
    return not entry.is_bound or not is_settled(entry, now)


def _overlapping(history: History, node: Kubelet) -> dict[str, Entry]:
    """Returns by UID the pods that the kubelet may have admitted before or after another event of its resources."""
    ended = {record.entry.uid: record for record in history.ended}
    admissions = [
        (entry, admission_window(entry, ended.get(entry.uid)))
        for entry in chain(history.log, unreported(history))
        if entry.seen.listed is None and holds_own(node, entry.record.seen(node))
    ]
    events = [(entry.uid, window) for entry, window in admissions]
    events += [(uid, end_window(end)) for uid, end in ended.items() if holds_own(node, end.record.seen(node))]
    return {
        entry.uid: entry
        for entry, window in admissions
        if any(uid != entry.uid and not (window.is_before(at) or at.is_before(window)) for uid, at in events)
    }
