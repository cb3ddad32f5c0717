"""Pods on their way to a node, in other orders than the predicted order: would their kubelet refuse a pod?

Invariant: trials are copies. The answer is yes only for orders that were tried, up to pods of the same shape. Where the
orders are too many, the first `at_most` trials decide. In each order a pod gets the devices that the model gives it; a
kubelet that takes others of equal preference may still refuse a later pod of that order. All choices would multiply
the admissions of an order (0.1 ms each) by up to 64 a pod, so that `at_most` would end within the first order. A node
with such a choice is uncertain after the bind, and then the next verdict considers all choices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.trial import place_all, trial
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.node.pod_parts import holds_own, is_of_any_size
from topowise_scheduler.ledger.pods.pod_states import BookingState
from topowise_scheduler.ledger.pods.records import PodRecord


def survive(node: NodeState, record: PodRecord, without: Collection[str], at_most: int) -> bool:
    """Returns whether the pods that their kubelet has not acknowledged still fit if the pod of `record` comes first.

    The pods in `without` are away. True if more than `at_most` pods are on their way.
    """
    away = {record.uid, *without}
    # Only bound pods can overtake: their Bindings are on the way to the kubelet already.
    coming = _coming(node, BookingState.ASSIGNED, away)
    state = node.without(away) if 0 < len(coming) <= at_most else None
    return state is None or not _matters(state, [record, *coming]) or _fit_after(state, record, coming)


def survive_any_order(node: NodeState, record: PodRecord, without: Collection[str], at_most: int) -> bool:
    """Returns whether the pod and all pods on their way, reserved pods too, fit in every order.

    This is for pods that another scheduler binds. The pods in `without` are away. After `at_most` admissions, the
    orders that were tried decide.
    """
    away = {record.uid, *without}
    coming = expected(node, away)
    state = node.without(away) if coming else None
    if state is None or not _matters(state, [record, *coming]) or not holds_own(state, record.view(state)):
        return True
    return _fit_in_any_order(state, record, coming, at_most)


def expected(node: NodeState, away: Collection[str]) -> list[PodRecord]:
    """Returns the pods on their way to the node, reserved pods too, but for those that are `away`."""
    return _coming(node, BookingState.RESERVED, away)


def only_expected(node: NodeState, record: PodRecord) -> list[str]:
    """Returns the expected pods that fit here, if their absence may make the kubelet refuse the pod.

    The kubelet does not know them yet. More free resources are not always better: an init container that finds some on
    another NUMA node ties the containers after it to that NUMA node.
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
    """Returns the pods at least as sure as `least` that fit here and that their kubelet has not acknowledged."""
    return [
        entry.record
        for entry in (*node.history.log, *node.history.expected)
        if entry.state >= least
        and node.is_placed(entry.uid)
        and entry.seen.acknowledged is None
        and entry.uid not in away
    ]


def _matters(node: Kubelet, records: Iterable[PodRecord]) -> bool:
    """Returns whether the order of these pods matters if there is room for all of them."""
    # On a single NUMA node only sums decide, and sums do not depend on the order.
    return len(node.node_ids) > 1 or any(is_of_any_size(node, record.view(node)) for record in records)


def _fit_after(state: Kubelet, record: PodRecord, coming: Sequence[PodRecord]) -> bool:
    """Returns whether these pods of the node still fit if another pod comes before them."""
    without = state.without([pod.uid for pod in coming])
    return place_all(without, [pod.view for pod in (record, *coming)]) is not None


def _fit_in_any_order(state: Kubelet, record: PodRecord, coming: Sequence[PodRecord], at_most: int) -> bool:
    """Returns whether another pod and these pods fit in every order. Takes these pods off the node."""
    # Pods of one shape need no order among them. The new pod is tried first, then the pods that were booked last.
    shapes: dict[bytes, list[PodView]] = {record.admission_key: [record.view(state)]}
    for pod in reversed(coming):
        view = pod.view(state)
        if holds_own(state, view):
            state.remove(pod.uid)
            shapes.setdefault(pod.admission_key, []).append(view)
    return _fit(state, list(shapes.values()), [at_most])


def _fit(state: Kubelet, shapes: list[list[PodView]], left: list[int]) -> bool:
    """Returns whether no order of these pods, by shape, ends in a refusal. `left` counts the admissions down."""
    for at, equal in enumerate(shapes):
        if left[0] <= 0:
            return True
        left[0] -= 1
        # `after` has the traces of the admission, so the next pod sees the order that is tried.
        admission, after = trial(state, equal[0])
        if not admission.admitted:
            return False
        rest = [*shapes[:at], *([equal[1:]] if len(equal) > 1 else []), *shapes[at + 1 :]]
        if not _fit(after, rest, left):
            return False
    return True
