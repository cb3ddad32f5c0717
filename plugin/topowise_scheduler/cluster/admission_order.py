"""Pods on their way to a node, in other orders than the predicted one: would their kubelet refuse one of them?

Invariant: trials are copies. Yes is said only of orders that were tried, or of one that is like a tried one because its
pods have the same shapes; where there were too many to try, the caller's `at_most` says how many decided.
"""

from __future__ import annotations

from collections.abc import Sequence

from topowise_scheduler.cluster.possible_placements import holds_own
from topowise_scheduler.cluster.records import PodRecord
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView


def fit_after(state: Kubelet, record: PodRecord, coming: Sequence[PodRecord]) -> bool:
    """Whether all of these, which the node has, still find room if another pod comes before them."""
    trial = state.fork()
    for one in coming:
        trial.remove(one.uid)
    return all(trial.admit_view(one.view(trial)).admitted for one in (record, *coming))


def fit_in_any_order(state: Kubelet, record: PodRecord, coming: Sequence[PodRecord], at_most: int) -> bool:
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
