"""What a report is, whoever it is from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from topowise.errors import TopowiseError
from topowise.fingerprint import Method
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.masks import Mask

Precision = Literal["exact", "counts"]

PodName = tuple[str, str]
"""Namespace and name. A pod that the exporter could not name has no namespace, and its uid for a name."""

Placements = Mapping[str, Placement]
"""By container. "" is the pod itself: its pod-level resources (KEP-5526), or what a finished init container left it."""


class ReportError(TopowiseError):
    """A part of the object that cannot be used: the thing, its value and what was expected."""


class FreeResources(msgspec.Struct, frozen=True):
    """The kubelet's own word on what is free, which is right even where the holders are not all known.

    `cpus` can still be given exclusively, None with CPU manager none. `memory` is free bytes by type and node position,
    None where it is not told; `assignments` and `cells` are by position, None if the exporter could not read them.
    """

    cpus: CpuSet | None = None
    memory: Mapping[str, tuple[int | None, ...]] = {}
    assignments: tuple[int, ...] | None = None
    cells: tuple[Mask, ...] | None = None


class Occupant(msgspec.Struct, frozen=True):
    """A made-up pod that holds what is not available in one zone, and requests as much; it never ends."""

    uid: str
    requests: Mapping[str, int]
    placements: Placements


class Report(msgspec.Struct, frozen=True):
    """One node as its NRT tells it.

    `version` is the object's resourceVersion. `empty` is the node with nothing held; it is shared between reports of
    equal hardware and configuration, so fork it before use. `problems` has a line for each part of the object that
    cannot be used: the thing, its value, what was expected, and what happens instead.

    `held` and `free` are exact only, `occupants` are what counts have instead. CPU ids and device ids of counts are
    made up.
    """

    name: str
    version: str
    precision: Precision
    empty: Kubelet
    held: Mapping[PodName, Placements] = {}
    free: FreeResources | None = None
    occupants: tuple[Occupant, ...] = ()
    offsets: Mapping[int, tuple[int, ...]] | None = None
    """numaplacement: NUMA node id -> offsets into the sorted hashes of all containers (topowise.placement)."""
    fingerprint: str = ""
    """Digest of the pods that are accounted for; "" if there is none to compare with."""
    fingerprint_method: Method = "all"
    admitting: frozenset[PodName] = frozenset()
    """Pods whose admission the exporter has not seen to end: they may hold more than `held` has of them."""
    unconfirmed: tuple[str, ...] = ()
    """Why this is the last true report and not what the kubelet says now (attributes.doubts); empty if it is."""
    problems: tuple[str, ...] = ()
