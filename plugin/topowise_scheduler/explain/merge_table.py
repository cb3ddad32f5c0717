"""The hints of a merge and their results, by NUMA node ids, for people and scripts.

The Topology Manager tries all combinations of a hint per resource; kubelet/topology_manager.py finds the best without
them. This module counts combinations by result: at most two results per mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from topowise.pods import HUGEPAGES
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.hints import Hint, Hints
from topowise_scheduler.kubelet.masks import Mask, by_size, masks_in
from topowise_scheduler.kubelet.topology_manager import TopologyManager

# For more NUMA nodes the table is too long to read, and takes seconds.
MAX_NODES: Final = 8


class Merge(NamedTuple):
    """The result of `ways` combinations. `masks` is an example, by group; None is "fits nowhere", which has no mask."""

    hint: Hint
    ways: int
    masks: tuple[Mask | None, ...]


def merges(manager: TopologyManager, groups: Sequence[Hints]) -> list[Merge]:
    """Returns the results, the best first. Without results the kubelet takes all nodes, not preferred.

    Raises ValueError for more than MAX_NODES nodes, and for policy none, which merges nothing.
    """
    if manager.count > MAX_NODES or manager.settings.policy == "none":
        raise ValueError(f"{manager.count} NUMA nodes and policy {manager.settings.policy}, expected a merge")
    results: dict[tuple[Mask, bool], Merge] = {}
    if all(_options(manager, group) for group in groups):
        results = {(manager.default, True): Merge(Hint(manager.default, True), 1, ())}
    for number, group in enumerate(groups):
        results = _joined(results, _options(manager, group), is_first=not number)
    best_first = manager.order(groups)
    return sorted((merge for merge in results.values() if merge.hint.mask), key=lambda merge: best_first(merge.hint))


def _options(manager: TopologyManager, group: Hints) -> list[tuple[Mask | None, bool]]:
    """Returns the hints of a group as the policy filters them (filterSingleNumaHints)."""
    if manager.settings.policy == "single-numa-node":
        return [(mask, True) for mask in masks_in(group.preferred & by_size(manager.count)[1])]
    options: list[tuple[Mask | None, bool]] = [
        (mask, bool(group.preferred >> mask & 1)) for mask in masks_in(group.fits)
    ]
    return options or [(None, False)]


def _joined(
    results: dict[tuple[Mask, bool], Merge], options: Sequence[tuple[Mask | None, bool]], *, is_first: bool
) -> dict[tuple[Mask, bool], Merge]:
    """Returns every result so far combined with every hint. It stays preferred if all hints are preferred and equal."""
    joined: dict[tuple[Mask, bool], Merge] = {}
    for (merged_mask, preferred), previous in results.items():
        for mask, is_preferred in options:
            merged = merged_mask if mask is None else merged_mask & mask
            key = merged, preferred and is_preferred and (is_first or mask == merged_mask)
            known = joined.get(key)
            if known is None:
                joined[key] = Merge(Hint(*key), previous.ways, (*previous.masks, mask))
            else:
                joined[key] = known._replace(ways=known.ways + previous.ways)
    return joined


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
    if len(kubelet.node_ids) > MAX_NODES:
        return MergeTable((), (), too_many=True)
    results = merges(kubelet.topology_manager, [hints for _, hints in groups])
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
                for merge in results
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
