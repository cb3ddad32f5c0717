"""What the engine says of a pod and many nodes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine.decisions import REASONS, SHORT


class Outcome(IntEnum):
    """Whether the node's kubelet would admit the pod.

    UNSCHEDULABLE: not now, but it would with nothing held by pods. UNRESOLVABLE: not even then. UNKNOWN: no such row.
    """

    UNKNOWN = 0
    FITS = 1
    UNSCHEDULABLE = 2
    UNRESOLVABLE = 3


@dataclass(frozen=True, slots=True)
class Judgement:
    """Arrays in the order of `rows` (nodes,); they are the caller's own.

    `outcome` is of Outcome. `reason` is a place in decisions.REASONS, 0 where the pod fits, and `short` a place in
    `resources` where the reason is a shortage, else -1. `masks` (steps, nodes) has the hint of every container in the
    order of admission, bit z for the NUMA node at position z and 0 for no affinity; it is right where the pod fits.
    """

    rows: NDArray[np.int32]
    outcome: NDArray[np.int8]
    reason: NDArray[np.int8]
    short: NDArray[np.int16]
    masks: NDArray[np.int32]
    resources: tuple[str, ...]

    def reason_of(self, index: int) -> str:
        """The kubelet's reason for the node at a place of the arrays, "" if the pod fits."""
        reason = int(self.reason[index])
        return REASONS[reason] + self.resources[self.short[index]] if reason == SHORT else REASONS[reason]
