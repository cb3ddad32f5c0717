"""The model's answer for a pod: the decision, and each container's allocation."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topowise.pods import Kind, Qos
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.hints import Hint
from topowise_scheduler.kubelet.predicates import Shortage


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
