"""What has been decided about each node so far."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.engine.lattice import Flags
from topowise_scheduler.kubelet.hints import EMPTY_POOL, SMT_ALIGNMENT, TOPOLOGY_AFFINITY, UNEXPECTED

OUT_OF: Final = "OutOf"

# The reasons of the kubelet, by the number they have in arrays. "OutOf" goes on with the name of a resource.
REASONS: Final = ("", TOPOLOGY_AFFINITY, UNEXPECTED, SMT_ALIGNMENT, EMPTY_POOL, OUT_OF)
NUMBER_OF: Final = {reason: number for number, reason in enumerate(REASONS)}
AFFINITY: Final = NUMBER_OF[TOPOLOGY_AFFINITY]
FAILED: Final = NUMBER_OF[UNEXPECTED]
NOT_WHOLE_CORES: Final = NUMBER_OF[SMT_ALIGNMENT]
SHORT: Final = NUMBER_OF[OUT_OF]

# Why counts do not tell and the model of the one node is asked.
CAUSES: Final = (
    "",
    "zones",
    "negative-memory",
    "align-by-socket",
    "pod-level-managers",
    "exact-shares",
    "devices-near-several-nodes",
    "cpus-over-several-nodes",
    "devices-over-several-nodes",
    "cpus-of-init-containers",
    "distributed-cpus",
    "uneven-cores",
)
CAUSE: Final = {cause: number for number, cause in enumerate(CAUSES)}


class Decisions:
    """`live` (nodes,) are undecided yet; of the others `reason` says why they refuse, or `cause` why counts do not
    tell. `short` is the place of the missing resource among the requests of the shape (trial.py)."""

    __slots__ = ("cause", "live", "reason", "short")

    def __init__(self, count: int) -> None:
        self.live: Flags = np.ones(count, dtype=np.bool_)
        self.reason: NDArray[np.int8] = np.zeros(count, dtype=np.int8)
        self.short: NDArray[np.int16] = np.full(count, -1, dtype=np.int16)
        self.cause: NDArray[np.int8] = np.zeros(count, dtype=np.int8)

    def refuse(self, where: Flags, reason: int) -> None:
        """These nodes refuse the pod, unless they were decided before."""
        where = where & self.live
        self.reason[where] = reason
        self.live &= ~where

    def doubt(self, where: Flags | None, cause: str) -> None:
        """For these the model is to be asked, unless they were decided before."""
        if where is not None:
            where = where & self.live
            self.cause[where] = CAUSE[cause]
            self.live &= ~where
