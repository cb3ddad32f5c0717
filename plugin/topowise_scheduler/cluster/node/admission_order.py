"""Pods on their way to a node, in other orders than the predicted one: would their kubelet refuse one of them?

Invariant: trials are copies. Yes is said only of orders that were tried, or of one that is like a tried one because its
pods have the same shapes; where there were too many to try, the caller's `at_most` says how many decided.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from topowise_scheduler.cluster.node.bookings import BookingState
from topowise_scheduler.cluster.node.node_state import NodeState
from topowise_scheduler.cluster.node.possible_placements import holds_own, is_of_any_size
from topowise_scheduler.cluster.pods.records import PodRecord
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView


def survive(node: NodeState, record: PodRecord, without: Collection[str], at_most: int) -> bool:
    """Whether the pods that their kubelet has not taken on yet still find room if this one comes before them.
    `without` some pods. True if there are more than `at_most` of them.
    """
    away = {record.uid, *without}
    coming = _coming(node, BookingState.ASSIGNED, away)
    state = node.without(away) if 0 < len(coming) <= at_most else None
    return state is None or not _matters(state, [record, *coming]) or _fit_after(state, record, coming)


def survive_any_order(node: NodeState, record: PodRecord, without: Collection[str], at_most: int) -> bool:
    """Whether this pod and all that their kubelet has not taken on yet, the reserved ones too, find room in whatever
    order they come: the one for pods that somebody else binds. `without` some pods.

    After `at_most` admissions, what was tried decides.
    """
    away = {record.uid, *without}
    coming = _coming(node, BookingState.RESERVED, away)
    state = node.without(away) if coming else None
    if state is None or not _matters(state, [record, *coming]) or not holds_own(state, record.view(state)):
        return True
    return _fit_in_any_order(state, record, coming, at_most)


def only_expected(node: NodeState, record: PodRecord) -> list[str]:
    """Pods that have room here and are not bound, if the pod might be refused for want of them.

    Its kubelet does not know them. That there is more room is not always better: an init container that finds some on
    another NUMA node ties those after it to that one.
    """
    state = node.kubelet
    if state is None or len(state.node_ids) < 2 or len(record.view(state).containers) < 2:
        return []
    return [
        entry.uid
        for entry in node.history.expected
        if entry.uid != record.uid and node.is_placed(entry.uid) and holds_own(state, entry.record.view(state))
    ]


def _coming(node: NodeState, least: BookingState, away: Collection[str]) -> list[PodRecord]:
    """Pods at least as sure as this that have room here, and that their kubelet has not been seen to take on."""
    return [
        entry.record
        for entry in (*node.history.log, *node.history.expected)
        if entry.state >= least
        and node.is_placed(entry.uid)
        and entry.seen.acknowledged is None
        and entry.uid not in away
    ]


def _matters(node: Kubelet, some: Iterable[PodRecord]) -> bool:
    """Whether it matters to these pods in which order they come, if there is room for all of them."""
    return len(node.node_ids) > 1 or any(is_of_any_size(node, one.view(node)) for one in some)


def _fit_after(state: Kubelet, record: PodRecord, coming: Sequence[PodRecord]) -> bool:
    """Whether all of these, which the node has, still find room if another pod comes before them."""
    trial = state.fork()
    for one in coming:
        trial.remove(one.uid)
    return all(trial.admit_view(one.view(trial)).admitted for one in (record, *coming))


def _fit_in_any_order(state: Kubelet, record: PodRecord, coming: Sequence[PodRecord], at_most: int) -> bool:
    """Whether another pod and all of these find room in whatever order they come. Takes them off the node.

    After `at_most` admissions, what was tried decides.
    """
    # Pods of one shape are as good as each other. The newcomer first, then those that were booked last.
    shapes: dict[bytes, list[PodView]] = {record.shape: [record.view(state)]}
    for one in reversed(coming):
        view = one.view(state)
        if holds_own(state, view):
            state.remove(one.uid)
            shapes.setdefault(one.shape, []).append(view)
    return _fit(state, list(shapes.values()), [at_most])


def _fit(state: Kubelet, shapes: list[list[PodView]], left: list[int]) -> bool:
    """Whether no order of these pods, equal ones together in a list, ends in a refusal. `left` counts down."""
    for at, equal in enumerate(shapes):
        if left[0] <= 0:
            return True
        left[0] -= 1
        trial = state.fork()
        if not trial.admit_view(equal[0]).admitted:
            return False
        rest = [*shapes[:at], *([equal[1:]] if len(equal) > 1 else []), *shapes[at + 1 :]]
        if not _fit(trial, rest, left):
            return False
    return True
