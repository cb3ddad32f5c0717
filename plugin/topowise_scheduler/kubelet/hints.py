"""Topology hints, and why a provider refuses (pkg/kubelet/cm/topologymanager, pkg/kubelet/cm/admission)."""

from __future__ import annotations

from typing import Final, NamedTuple

from topowise_scheduler.kubelet.masks import Mask, MaskSet

TOPOLOGY_AFFINITY: Final = "TopologyAffinityError"
UNEXPECTED: Final = "UnexpectedAdmissionError"
SMT_ALIGNMENT: Final = "SMTAlignmentError"
EMPTY_POOL: Final = "EmptyPodSharedPoolError"
# Not the kubelet's: it would go on for ever, and answer no other pod meanwhile.
NEVER_ENDS: Final = "KubeletWouldHang"
# Not the kubelet's: its process ends, starts again, and gets the same pod again.
WOULD_PANIC: Final = "KubeletWouldPanic"


class Hint(NamedTuple):
    """A merged hint. `mask` None is the kubelet's nil: no affinity at all, which is not the same as all nodes."""

    mask: Mask | None
    preferred: bool


class Hints(NamedTuple):
    """What one provider says about one resource: the masks that fit, and those of them it prefers.

    Nothing fits means "impossible", the kubelet's empty list. A resource the provider does not care about (the
    kubelet's nil list or empty map) is left out of its answer instead.
    """

    fits: MaskSet
    preferred: MaskSet


ProviderHints = dict[str, Hints]
IMPOSSIBLE: Final = Hints(0, 0)
NO_AFFINITY: Final = Hint(None, False)


class Refused(Exception):  # noqa: N818 - a decision, not an error of ours
    """A provider does not allocate. `reason` is the pod's status.reason, the text the provider's own error."""

    def __init__(self, error: str, reason: str = UNEXPECTED) -> None:
        super().__init__(error)
        self.error = error
        self.reason = reason

    @property
    def message(self) -> str:
        """The text of the pod's status.message (GetPodAdmitResult in cm/admission/errors.go)."""
        if self.reason == UNEXPECTED:
            return f"Allocate failed due to {self.error}, which is unexpected"
        return self.error
