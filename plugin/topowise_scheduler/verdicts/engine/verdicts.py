"""The verdicts on a pod and many nodes: the kubelet's reason for a refusal, or the cause why amounts do not decide.

Invariant: the first decision on a node is final (`Decisions`), as the kubelet stops at the first failed check.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.kubelet.hints import (
    EMPTY_POOL,
    NEVER_ENDS,
    SMT_ALIGNMENT,
    TOPOLOGY_AFFINITY,
    UNEXPECTED,
    WOULD_PANIC,
)
from topowise_scheduler.kubelet.predicates import LACKS_GATE, SIDECARS_FORBIDDEN
from topowise_scheduler.verdicts.engine.mask_arrays import Flags

OUT_OF: Final = "OutOf"

# The kubelet's reasons, by their number in arrays. The name of a resource follows "OutOf".
REASONS: Final = (
    "", TOPOLOGY_AFFINITY, UNEXPECTED, SMT_ALIGNMENT, EMPTY_POOL, NEVER_ENDS, WOULD_PANIC, SIDECARS_FORBIDDEN,
    LACKS_GATE, OUT_OF,
)  # fmt: skip
NUMBER_OF: Final = {reason: number for number, reason in enumerate(REASONS)}
AFFINITY: Final = NUMBER_OF[TOPOLOGY_AFFINITY]
FAILED: Final = NUMBER_OF[UNEXPECTED]
NOT_WHOLE_CORES: Final = NUMBER_OF[SMT_ALIGNMENT]
PANICS: Final = NUMBER_OF[WOULD_PANIC]
SIDECARS: Final = NUMBER_OF[SIDECARS_FORBIDDEN]
NO_GATE: Final = NUMBER_OF[LACKS_GATE]
SHORT: Final = NUMBER_OF[OUT_OF]

# Why amounts do not decide and the kubelet model of the node does.
CAUSES: Final = (
    "",
    "zones",
    "negative-memory",
    "numa-ids",
    "page-sizes",
    "align-by-socket",
    "pod-level-managers",
    "devices-near-several-nodes",
    "cpus-over-several-nodes",
    "devices-over-several-nodes",
    "cpus-of-init-containers",
    "distributed-cpus",
    "memory-groups",
    "uneven-cores",
    "placement",
)
CAUSE: Final = {cause: number for number, cause in enumerate(CAUSES)}


class Decisions:
    """`undecided` (nodes,), and for decided nodes the `reason` for the refusal or the `cause` for the model's
    decision."""

    __slots__ = ("cause", "reason", "undecided")

    def __init__(self, count: int) -> None:
        self.undecided: Flags = np.ones(count, dtype=np.bool_)
        self.reason: NDArray[np.int8] = np.zeros(count, dtype=np.int8)
        self.cause: NDArray[np.int8] = np.zeros(count, dtype=np.int8)

    def refuse(self, where: Flags, reason: int) -> None:
        """Decides that these nodes refuse the pod, unless they were decided before."""
        where = where & self.undecided
        self.reason[where] = reason
        self.undecided &= ~where

    def defer(self, where: Flags | None, cause: str) -> None:
        """Leaves these nodes to the kubelet model, unless they were decided before."""
        if where is not None:
            where = where & self.undecided
            self.cause[where] = CAUSE[cause]
            self.undecided &= ~where


class Outcome(IntEnum):
    """Whether the node's kubelet would admit the pod.

    UNSCHEDULABLE: only if the node were empty. UNRESOLVABLE: not even then. UNKNOWN: no verdict.
    """

    UNKNOWN = 0
    FITS = 1
    UNSCHEDULABLE = 2
    UNRESOLVABLE = 3
