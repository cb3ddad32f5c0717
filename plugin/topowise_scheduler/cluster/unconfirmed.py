"""Nodes whose report is the last true one, and not what their kubelet says now.

A kubelet that restarts lists nothing for seconds, although everything still runs; its exporter keeps the last object
and says so in it (`topowise.io/unconfirmed`). What ended or came since nobody knows, so such a node is *closed* for
pods that its kubelet would have to align or give something of its own. A node whose object was deleted is unconfirmed too,
but not closed: its kubelet is as it was, and what comes to it and goes is booked as ever.

Invariant: a node is in here exactly as long as its present report says why, or its object is gone and its Node is not.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.cluster.records import PodRecord
from topowise_scheduler.engine import Engine

OBJECT_DELETED: Final = "object-deleted"
_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")


class UnconfirmedNodes:
    """By name, with the reasons. Not thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reasons: dict[str, tuple[str, ...]] = {}
        self._closed: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self._reasons)

    def put(self, node: str, reasons: tuple[str, ...]) -> None:
        """Why the node's report is not its kubelet's word; none if it is."""
        if self._reasons.get(node, ()) != reasons:
            self._closed = None
            if reasons:
                self._reasons[node] = reasons
            else:
                del self._reasons[node]

    def why(self, node: str) -> tuple[str, ...]:
        """The reasons, none for a node that is confirmed."""
        return self._reasons.get(node, ())

    def is_closed(self, node: str) -> bool:
        """Whether the node takes no pods that are bound to NUMA nodes."""
        return bool(self._reasons) and self.why(node) not in ((), (OBJECT_DELETED,))

    def closed_rows(self) -> NDArray[np.int32]:
        """The engine's rows of closed nodes."""
        if self._closed is None:
            self._closed = self._engine.rows([name for name in self._reasons if self.is_closed(name)])
        return self._closed


def is_numa_bound(record: PodRecord) -> bool:
    """Whether a kubelet might give the pod CPUs, memory or devices of its own; a yes may be wrong, a no is not."""
    needs = record.needs
    return needs is not None and (
        needs.qos == "Guaranteed" or any(name not in _NATIVE for one in needs.containers for name in one.limits)
    )
