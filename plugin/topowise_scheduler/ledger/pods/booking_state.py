"""How sure it is that a pod is on its node."""

from __future__ import annotations

from enum import IntEnum


class BookingState(IntEnum):
    """How sure a booking is; a later state replaces an earlier one."""

    NOMINATED = 1
    """kube-scheduler evicts victims for the pod here, or this service has nominated the pod."""
    RESERVED = 2
    """This service has let the pod onto the node, and expects it."""
    ASSIGNED = 3
    """It is bound to the node."""
