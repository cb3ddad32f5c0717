"""Which pods of a node may lie elsewhere than predicted, by what is known of the order of events.

A prediction is exact if the kubelet admitted the pod in the order of the log. The API server tells the order of a bind
and an end only roughly: a kubelet knows an end up to `LATE_S` before the API server, and admits a pod at any time
between its Binding and the event that acknowledges it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain

from topowise_scheduler.cluster.node.bookings import EARLY_S, ENDED_KEPT_S, LATE_S, BookingState
from topowise_scheduler.cluster.node.history import Entry, History
from topowise_scheduler.cluster.node.possible_placements import has_choice_of_devices, holds_own
from topowise_scheduler.kubelet import Kubelet


def uncertain(history: History, node: Kubelet, now: float) -> list[Entry]:
    """Returns the pods that may lie elsewhere than predicted; `now` is in seconds, monotonic.

    Such a pod came lately, other pods came or went while its kubelet admitted it, its devices are the choice of the
    kubelet, or it was predicted beside a pod that may lie elsewhere itself.
    """
    predicted = [entry for entry in chain(history.log, history.expected) if _is_predicted(entry, now)]
    if not predicted:
        return []
    holders = [entry for entry in chain(history.log, history.expected) if holds_own(node, entry.record.seen(node))]
    bound = [entry for entry in holders if entry.is_bound]
    releases = [ended.at for ended in history.ended if holds_own(node, ended.record.seen(node))]
    doubted = [ended.entry.seen.since for ended in history.ended if ended.was_uncertain]
    doubted_since = min(doubted, default=float("inf"))
    found = [
        entry
        for entry in holders
        if _is_predicted(entry, now)
        and (
            entry.seen.since > doubted_since
            or has_choice_of_devices(node, entry.record.seen(node))
            or _may_have_been_overtaken(entry, bound, releases, now)
        )
    ]
    first = min((entry.seen.since for entry in found if entry.is_bound), default=now)
    known = {entry.uid for entry in found}
    after = [
        entry for entry in bound if entry.seen.since > first and entry.uid not in known and _is_predicted(entry, now)
    ]
    return found + after


def _is_predicted(entry: Entry, now: float) -> bool:
    """Returns whether nothing but the prediction tells where the pod lies.

    A pod that was not reported for so long after its admission never will be: the exporter leaves it out.
    """
    if entry.seen.listed is not None or (entry.state is BookingState.NOMINATED and not entry.ahead):
        return False
    acknowledged = entry.seen.acknowledged
    return acknowledged is None or now - acknowledged <= ENDED_KEPT_S


def _may_have_been_overtaken(entry: Entry, bound: Iterable[Entry], releases: Collection[float], now: float) -> bool:
    """Returns whether another pod may have come or gone, for the kubelet, between decision and admission of the pod."""
    seen = entry.seen
    if entry.state is BookingState.RESERVED or seen.acknowledged is None or now - seen.acknowledged < LATE_S:
        return True
    begin, end = seen.since - EARLY_S, seen.acknowledged + LATE_S
    if seen.was_there or any(begin <= at <= end for at in releases):
        return True
    return any(
        other.uid != entry.uid and other.seen.since <= end and (other.seen.acknowledged or now) >= begin
        for other in bound
    )
