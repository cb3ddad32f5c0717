"""Why this service refuses a node for a pod: a closed set of values. Their texts are in presentation/explain.

Code compares these values and never a text. kube-scheduler writes the text of a refusal into the status of the pod, and
a changed text requeues the pod, so a text with a changing number causes an endless loop (measured: 1,081 calls in 45
s). So a refusal has no amounts, and `explain` shows what is missing.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Final, TypeAlias

PREFIX: Final = "NUMA: "
"""Each text in an answer to kube-scheduler begins with it, which identifies our waiting pods after a restart."""


class Refusal(IntEnum):
    """A reason to refuse a node, as a number above 0: arrays have 0 for a node that is not refused."""

    # Of the kubelet, by its reason.
    NOT_NOW = auto()
    NOT_ALLOCATABLE = auto()
    NOT_WHOLE_CORES = auto()
    NO_SHARED_POOL = auto()
    WOULD_HANG = auto()
    WOULD_PANIC = auto()
    SIDECARS = auto()
    LACKS_GATE = auto()
    OUT_OF = auto()
    NEVER = auto()
    NEVER_ALLOCATABLE = auto()
    NEVER_ENOUGH = auto()
    # Of the gates.
    UNCERTAIN = auto()
    TOO_SLOW = auto()
    QUARANTINED = auto()
    UNCONFIRMED = auto()
    NEW_NODE = auto()
    RESERVED_ELSEWHERE = auto()
    EXPORTER_DOWN = auto()
    WEAKER_POLICY = auto()
    OTHER_POLICY = auto()
    NOT_NEAR = auto()
    NOT_SURELY_NEAR = auto()
    STEERING_IS_OFF = auto()
    NOT_STEERED_BY_POLICY = auto()
    NOT_STEERED_BY_BINDER = auto()
    NO_MARKERS = auto()
    NODE_HAS_NO_MARKERS = auto()
    TOO_FEW_MARKERS = auto()
    NO_SUCH_NUMA_NODE = auto()
    NUMA_NODE_FULL = auto()
    NO_COMMON_NUMA_NODE = auto()
    NO_POD_BESIDE = auto()
    NONE_APART = auto()
    PODS_NOT_LOCATED = auto()
    CLAIMS_ARE_OFF = auto()
    CLAIMS_APART = auto()
    CLAIMS_WERE_APART = auto()
    DEVICES_RESERVED = auto()
    TOO_LARGE = auto()
    PLACES_UNKNOWN = auto()
    # Only at a bind or a reservation, which know the pods on their way to the node.
    BEFORE_OTHERS = auto()
    BEFORE_EXPECTED = auto()
    OTHER_ORDER = auto()
    IS_BOUND = auto()
    NOT_REPORTED = auto()
    NOT_SEEN = auto()
    # Only beside the answers to kube-scheduler.
    NO_REPORT = auto()
    TAKEN_BEFORE = auto()
    UNREADABLE = auto()
    # Only of nodes that fit a member of a gang.
    BETTER_NODE = auto()


Reason: TypeAlias = Refusal | str
"""A refusal of this service, or kube-scheduler's own words (Objection)."""

TEMPORARY: Final = frozenset(
    (
        Refusal.NEW_NODE,
        Refusal.UNCONFIRMED,
        Refusal.EXPORTER_DOWN,
        Refusal.QUARANTINED,
        Refusal.RESERVED_ELSEWHERE,
        Refusal.PODS_NOT_LOCATED,
        Refusal.CLAIMS_WERE_APART,
    )
)
"""Refusals that time or the next report of the node ends, and no eviction."""
OF_STEERING: Final = frozenset(
    (
        Refusal.TOO_FEW_MARKERS,
        Refusal.NUMA_NODE_FULL,
        Refusal.NO_COMMON_NUMA_NODE,
        Refusal.NO_POD_BESIDE,
        Refusal.NONE_APART,
    )
)
"""Refusals that end with other pods of the node."""
OF_CLAIMS: Final = frozenset((Refusal.CLAIMS_APART, Refusal.CLAIMS_WERE_APART, Refusal.DEVICES_RESERVED))
"""Refusals that end with other pods or claims of the node."""
OF_DEVICES: Final = frozenset((Refusal.NOT_NEAR, Refusal.NOT_SURELY_NEAR, Refusal.PLACES_UNKNOWN))
"""Refusals of a node that other pods on the node may end, although evictions are not planned for that."""

OF_KUBELET: Final = {
    "TopologyAffinityError": Refusal.NOT_NOW,
    "UnexpectedAdmissionError": Refusal.NOT_ALLOCATABLE,
    "SMTAlignmentError": Refusal.NOT_WHOLE_CORES,
    "EmptyPodSharedPoolError": Refusal.NO_SHARED_POOL,
    "KubeletWouldHang": Refusal.WOULD_HANG,
    "KubeletWouldPanic": Refusal.WOULD_PANIC,
    "InitContainerRestartPolicyForbidden": Refusal.SIDECARS,
    "PodLevelResourcesNotSupported": Refusal.LACKS_GATE,
}
"""By the kubelet's reason, which is in the pod's status."""
_EVER: Final = {
    Refusal.NOT_NOW: Refusal.NEVER,
    Refusal.NOT_ALLOCATABLE: Refusal.NEVER_ALLOCATABLE,
    Refusal.OUT_OF: Refusal.NEVER_ENOUGH,
}


def numbered(number: int) -> Refusal | None:
    """Returns the refusal that an array has, None for 0."""
    return Refusal(number) if number else None


def of(reason: str | None, *, ever: bool) -> Refusal | None:
    """Returns the refusal for a kubelet's reason (none if the pod fits); `ever`: even an empty node would refuse it."""
    if not reason:
        return None
    # The name of a resource follows.
    refusal = Refusal.OUT_OF if reason.startswith("OutOf") else OF_KUBELET[reason]
    return _EVER.get(refusal, refusal) if ever else refusal
