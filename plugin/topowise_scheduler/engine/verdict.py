"""What is said of one node for one pod."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec


class Outcome(IntEnum):
    """The numbers are those of `Verdict` in scoring.proto."""

    FITS = 1
    UNSCHEDULABLE = 2
    """Not now; evicting pods could make it fit."""
    UNRESOLVABLE = 3
    """Not even on the empty node."""


# kube-scheduler writes refusals into the pod's status, and an update that changes the text wakes the pod again: a text
# with a moving number in it is an endless loop (1,081 calls in 45 s were measured). So these never vary.
NO_ZONE_FOR_CONTAINER: Final = "no NUMA node has room for a container"
NO_ZONE_FOR_POD: Final = "no NUMA node has room for the pod"
ZONES_TOO_SMALL_FOR_CONTAINER: Final = "no NUMA node is large enough for a container"
ZONES_TOO_SMALL_FOR_POD: Final = "no NUMA node is large enough for the pod"


class Placement(msgspec.Struct, frozen=True):
    """The NUMA node that one container, or with scope pod the whole pod (`container` is ""), will take."""

    container: str
    zone: int
    amounts: Mapping[str, int]
    is_kept: bool = True
    """False for a plain init container, whose share is free again when it has finished."""


class Verdict(msgspec.Struct, frozen=True):
    """`placements` tell where the pod will go if it fits; none: the kubelet will not align it to anything.

    `lacking` is the container that found no room, "" for the whole pod."""

    outcome: Outcome
    reason: str = ""
    placements: tuple[Placement, ...] = ()
    lacking: str = ""

    @property
    def fits(self) -> bool:
        return self.outcome is Outcome.FITS


FITS_ANYWHERE: Final = Verdict(Outcome.FITS)
