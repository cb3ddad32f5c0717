"""The hints of a merge and their results, by NUMA node ids, for people and scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from topowise.pods import HUGEPAGES
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet import merge_table as merging
from topowise_scheduler.kubelet.hints import Hints
from topowise_scheduler.kubelet.masks import masks_in

Manager = Literal["cpu", "memory", "device"]


class NumaHint(msgspec.Struct, frozen=True, rename="camel"):
    """A set of NUMA nodes on which the request fits."""

    numa: tuple[int, ...]
    preferred: bool


class ResourceHints(msgspec.Struct, frozen=True, rename="camel"):
    """The hints of a manager for a resource, the narrowest first; empty if the request fits nowhere."""

    manager: Manager
    resource: str
    hints: tuple[NumaHint, ...]


class Merged(msgspec.Struct, frozen=True, rename="camel"):
    """The result of `ways` combinations; `hints` is an example by resource, None for a resource that fits nowhere."""

    numa: tuple[int, ...]
    preferred: bool
    ways: int
    hints: tuple[tuple[int, ...] | None, ...]


class MergeTable(msgspec.Struct, frozen=True, rename="camel"):
    """`merges` are in the Topology Manager's order of preference.

    `too_many`: the machine has more NUMA nodes than can be listed; hints and merges are left out.
    """

    resources: tuple[ResourceHints, ...]
    merges: tuple[Merged, ...]
    too_many: bool = False


def merge_table(kubelet: Kubelet, groups: Sequence[tuple[str, Hints]]) -> MergeTable:
    """The table of a merge that the kubelet does."""
    if len(kubelet.node_ids) > merging.MAX_NODES:
        return MergeTable((), (), too_many=True)
    merges = merging.merges(kubelet.topology_manager, [hints for _, hints in groups])
    return MergeTable(
        tuple([ResourceHints(_manager(name), name, _listed(kubelet, hints)) for name, hints in groups]),
        tuple(
            [
                Merged(
                    kubelet.ids(merge.hint.mask or 0),
                    merge.hint.preferred,
                    merge.ways,
                    tuple([None if mask is None else kubelet.ids(mask) for mask in merge.masks]),
                )
                for merge in merges
            ]
        ),
    )


def _listed(kubelet: Kubelet, hints: Hints) -> tuple[NumaHint, ...]:
    masks = sorted(masks_in(hints.fits), key=lambda mask: (mask.bit_count(), mask))
    return tuple([NumaHint(kubelet.ids(mask), bool(hints.preferred >> mask & 1)) for mask in masks])


def _manager(resource: str) -> Manager:
    if resource == "cpu":
        return "cpu"
    return "memory" if resource == "memory" or resource.startswith(HUGEPAGES) else "device"
