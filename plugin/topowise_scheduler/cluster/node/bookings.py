"""How sure it is that a pod is on its node, and for how long the service is unsure of its placement."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# The service hears of simultaneous events of the API server within EARLY_S, and of events on a node within LATE_S.
EARLY_S: Final = 0.2
LATE_S: Final = 2.0
# A report that lists an ended pod is taken for an old report for so long, and for the present state after that.
ENDED_KEPT_S: Final = 120.0


class BookingState(IntEnum):
    """How sure a booking is; a later state replaces an earlier one."""

    NOMINATED = 1
    """kube-scheduler evicts victims for the pod here, or this service has nominated the pod."""
    RESERVED = 2
    """This service has let the pod onto the node, and expects it."""
    ASSIGNED = 3
    """It is bound to the node."""
