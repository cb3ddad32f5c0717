"""All that a merge of hints weighs up, for people: what each combination of one hint per resource comes to.

The Topology Manager walks the combinations one by one and keeps the best; topology_manager.py finds the best without
them. Here they are counted by what they come to, which is far less than the combinations: at most two of each mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from topowise_scheduler.kubelet.hints import Hint, Hints
from topowise_scheduler.kubelet.masks import Mask, by_size, masks_in
from topowise_scheduler.kubelet.topology_manager import TopologyManager

# Beyond as many NUMA nodes a list of hints is for nobody to read, and takes seconds to make.
MAX_NODES: Final = 8


class Merge(NamedTuple):
    """What `ways` combinations come to. `masks` is one of them, by group; None is "fits nowhere", which has no mask."""

    hint: Hint
    ways: int
    masks: tuple[Mask | None, ...]


def merges(manager: TopologyManager, groups: Sequence[Hints]) -> list[Merge]:
    """The table, the best first, which is the one that is taken; if it is empty, all nodes are, not preferred.

    Raises ValueError for more than MAX_NODES nodes, and for policy none, which merges nothing.
    """
    if manager.count > MAX_NODES or manager.settings.policy == "none":
        raise ValueError(f"{manager.count} NUMA nodes and policy {manager.settings.policy}, expected a merge")
    found: dict[tuple[Mask, bool], Merge] = {}
    if all(_options(manager, group) for group in groups):
        found = {(manager.default, True): Merge(Hint(manager.default, True), 1, ())}
    for number, group in enumerate(groups):
        found = _joined(found, _options(manager, group), is_first=not number)
    best_first = manager.order(groups)
    return sorted((one for one in found.values() if one.hint.mask), key=lambda one: best_first(one.hint))


def _options(manager: TopologyManager, group: Hints) -> list[tuple[Mask | None, bool]]:
    """The hints of a group as the policy sees them."""
    if manager.settings.policy == "single-numa-node":
        return [(mask, True) for mask in masks_in(group.preferred & by_size(manager.count)[1])]
    options: list[tuple[Mask | None, bool]] = [
        (mask, bool(group.preferred >> mask & 1)) for mask in masks_in(group.fits)
    ]
    return options or [(None, False)]


def _joined(
    found: dict[tuple[Mask, bool], Merge], options: Sequence[tuple[Mask | None, bool]], *, is_first: bool
) -> dict[tuple[Mask, bool], Merge]:
    """Every combination so far with every hint. It stays preferred if all of it is, and all masks are the same."""
    joined: dict[tuple[Mask, bool], Merge] = {}
    for (so_far, preferred), one in found.items():
        for mask, is_preferred in options:
            merged = so_far if mask is None else so_far & mask
            key = merged, preferred and is_preferred and (is_first or mask == so_far)
            before = joined.get(key)
            if before is None:
                joined[key] = Merge(Hint(*key), one.ways, (*one.masks, mask))
            else:
                joined[key] = before._replace(ways=before.ways + one.ways)
    return joined
