"""The answer of the model to a pod: the decision, and what every container holds."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topowise.pods import Kind, Qos
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.hints import Hint
from topowise_scheduler.kubelet.predicates import Shortage


class MemoryBlock(msgspec.Struct, frozen=True, gc=False):
    """Memory of one type on these NUMA nodes, by id."""

    type: str
    numa: tuple[int, ...]
    size: int


class Placement(msgspec.Struct, frozen=True, gc=False):
    """What one container holds. `numa` and `preferred` are the stored hint, `numa` None for no affinity.

    `cpus` is None on the shared pool; as an integer it has the bit of every CPU id set.
    """

    kind: Kind
    numa: tuple[int, ...] | None
    preferred: bool
    cpus: CpuSet | None
    memory: tuple[MemoryBlock, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = {}


class Rejection(msgspec.Struct, frozen=True, gc=False):
    """Where an admission failed: the container ("" for the whole pod), and the provider or the hint that did not do.

    The mask of the hint is one of positions (`Kubelet.ids` gives the node ids).
    """

    container: str
    provider: str = ""
    error: str = ""
    merged: Hint | None = None


class Admission(msgspec.Struct, frozen=True, gc=False):
    """The decision. `reason` and `message` are those of the pod's status, `stage` is "topology" or "predicate"."""

    uid: str
    qos: Qos
    admitted: bool
    placements: Mapping[str, Placement] = {}
    stage: str = ""
    reason: str = ""
    message: str = ""
    rejection: Rejection | None = None
    shortages: tuple[Shortage, ...] = ()
