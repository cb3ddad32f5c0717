"""Lists the results of a merge of hints for display, with the number of combinations behind each result.

The Topology Manager tries all combinations of a hint per resource; topology_manager.py finds the best without them.
This module counts combinations by result: at most two results per mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

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
