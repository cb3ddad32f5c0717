"""How sure it is that a pod is on its node, and for how long the service doubts where it lies."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

# What the API server tells of one moment comes to us within this time, and what a kubelet knows first within that.
EARLY_S: Final = 0.2
LATE_S: Final = 2.0
# For so long a report that still lists an ended pod is taken for an old one; later, for the kubelet's truth.
ENDED_KEPT_S: Final = 120.0


class BookingState(IntEnum):
    """How sure a booking is; a later state replaces an earlier one."""

    NOMINATED = 1
    """kube-scheduler evicts others for it here, or we have nominated it ahead."""
    RESERVED = 2
    """We said yes, and expect it here."""
    ASSIGNED = 3
    """It is bound to the node."""
