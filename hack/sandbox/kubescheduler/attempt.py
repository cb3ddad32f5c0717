"""A scheduling attempt and its messages (pkg/scheduler/framework/types.go, FitError and NodeToStatus)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec


class Refused(msgspec.Struct, frozen=True):
    """A node that will not do. `ever`: UnschedulableAndUnresolvable, so evicting pods from it would not help."""

    reasons: tuple[str, ...]
    plugin: str
    ever: bool = False


class Attempt(msgspec.Struct, frozen=True):
    """A cycle for a pod. `scores` are the extender's, empty without a call. `error` is the error of the whole attempt.

    `nominated` is the node on which preemption evicts pods; `message` is the message of the pod's condition.
    """

    uid: str
    namespace: str
    name: str
    refused: Mapping[str, Refused] = {}
    feasible: tuple[str, ...] = ()
    scores: Mapping[str, int] = {}
    chosen: str | None = None
    nominated: str | None = None
    message: str = ""
    error: str = ""


def fit_error(nodes: int, reasons: Iterable[str], after: str = "") -> str:
    """FitError.Error: reasons with their counts, sorted as text; `after` is PostFilter's message."""
    counted = sorted(f"{count} {reason}" for reason, count in Counter(reasons).items())
    text = f"0/{nodes} nodes are available:"
    if counted:
        text += f" {', '.join(counted)}."
    return f"{text} {after}" if after else text


def said(refused: Mapping[str, Refused]) -> list[str]:
    """Returns every reason of every node."""
    return [reason for refusal in refused.values() for reason in refusal.reasons]
