"""Topology hints, the reasons of refusals, and the model's answer for a pod with each container's allocation.

Source: pkg/kubelet/cm/topologymanager, pkg/kubelet/cm/admission.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from topowise.pods import Kind, Qos
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.masks import Mask, MaskSet
from topowise_scheduler.kubelet.predicates import Shortage

TOPOLOGY_AFFINITY: Final = "TopologyAffinityError"
UNEXPECTED: Final = "UnexpectedAdmissionError"
SMT_ALIGNMENT: Final = "SMTAlignmentError"
EMPTY_POOL: Final = "EmptyPodSharedPoolError"
# Not a kubelet reason: the kubelet would search forever, and admit no other pod meanwhile.
NEVER_ENDS: Final = "KubeletWouldHang"
# Not a kubelet reason: the process would end, start again, and get the same pod again.
WOULD_PANIC: Final = "KubeletWouldPanic"


class Hint(NamedTuple):
    """A merged hint. `mask` None is the kubelet's nil, no affinity, which differs from a mask of all nodes."""

    mask: Mask | None
    preferred: bool


class Hints(NamedTuple):
    """The hints of a provider for a resource: the masks that fit, and among them the preferred masks.

    An empty `fits` is the kubelet's empty list: impossible. Its nil list or empty map means "don't care": then the
    provider leaves the resource out.
    """

    fits: MaskSet
    preferred: MaskSet


ProviderHints = dict[str, Hints]
IMPOSSIBLE: Final = Hints(0, 0)
NO_AFFINITY: Final = Hint(None, False)


class Refused(Exception):  # noqa: N818 - a decision, not a fault
    """A provider refuses an allocation. `reason` is the pod's status.reason, the text the provider's error."""

    def __init__(self, error: str, reason: str = UNEXPECTED) -> None:
        super().__init__(error)
        self.error = error
        self.reason = reason

    @property
    def message(self) -> str:
        """Returns the pod's status.message (GetPodAdmitResult in cm/admission/errors.go)."""
        if self.reason == UNEXPECTED:
            return f"Allocate failed due to {self.error}, which is unexpected"
        return self.error


class MemoryBlock(msgspec.Struct, frozen=True, gc=False):
    """Memory of a type on these NUMA nodes, by id."""

    type: str
    numa: tuple[int, ...]
    size: int


class Placement(msgspec.Struct, frozen=True, gc=False):
    """The allocation of a container. `numa` and `preferred` are the stored hint; `numa` is None without affinity.

    `cpus` is None for the shared pool, else an integer with the bit of every CPU id set.
    """

    kind: Kind
    numa: tuple[int, ...] | None
    preferred: bool
    cpus: CpuSet | None
    memory: tuple[MemoryBlock, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = {}


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """Where an admission failed: the container ("" for the pod), and the provider's error or the rejected hint.

    The mask of the hint has positions, not ids (`Kubelet.ids` converts them).
    """

    container: str
    provider: str = ""
    error: str = ""
    merged: Hint | None = None


class Admission(msgspec.Struct, frozen=True, gc=False):
    """The decision. `reason` and `message` are the pod's status fields; `stage` is "topology" or "predicate"."""

    uid: str
    qos: Qos
    admitted: bool
    placements: Mapping[str, Placement] = {}
    stage: str = ""
    reason: str = ""
    message: str = ""
    rejection: Rejection | None = None
    shortages: tuple[Shortage, ...] = ()
