"""Predicts where a kubelet panics while it admits a pod: the process ends, starts again, and gets the same pod again.

Each place reads an array or a map of the machine by a NUMA id without a check. All releases from 1.28 to 1.36 have
these places (docs/development/kubelet-versions.md lists them):

- `NUMADistances.CalculateAverageFor` (topologymanager/numa_info.go) reads a row of distances by NUMA id. Linux prints
  an entry for each online NUMA node. So if the ids of a machine have gaps, the highest ids are out of range.
- `calculateHints` (memorymanager/policy_static.go) reads the memory of a page size on every NUMA node. A NUMA node
  without the page size has no entry. Before Linux 6.1 a NUMA node without memory has no page sizes.
- `generateDeviceTopologyHints` (devicemanager/topology_hints.go) reads the listed device of each allocated id. After a
  restart a container can have a device that its plugin no longer lists.
- `bitmask.NewBitMask` (topologymanager/bitmask) returns a nil mask for an id of 64 or more, and its callers use it.

`hazards` finds the machines and configurations for which that can happen, or a kubelet searches forever or gives
resources twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Final, Literal, get_args

from topowise_scheduler.kubelet.hints import WOULD_PANIC, Hints, Refused
from topowise_scheduler.kubelet.masks import KUBELET_BITS, Mask, MaskSet, masks_in, members, subsets, union

if TYPE_CHECKING:
    from topowise_scheduler.kubelet.node import Kubelet

# Steps of a walk through the permutations of hints, about two milliseconds. A longer walk counts as a panic.
_MOST_STEPS: Final = 4096

_Option = tuple[Mask, bool]


def distances_missing(ids: Sequence[int]) -> Refused:
    """Returns the refusal for a comparison of NUMA nodes by missing distances."""
    return Refused(
        "the kubelet would panic: prefer-closest-numa-nodes reads the distances by NUMA id, and they have no entry for "
        f"NUMA id {', '.join(map(str, ids))}, as the ids of this machine have gaps",
        WOULD_PANIC,
    )


def page_size_missing(name: str, ids: Sequence[int]) -> Refused:
    """Returns the refusal for a page size that a NUMA node lacks."""
    where = f"NUMA node {', '.join(map(str, ids))} does not have" if ids else "no NUMA node has"
    return Refused(
        f"the kubelet would panic: its memory manager looks up {name} on every NUMA node, and {where} it", WOULD_PANIC
    )


def device_missing(resource: str, ids: Sequence[str]) -> Refused:
    """Returns the refusal for allocated devices that the device plugin no longer lists."""
    return Refused(
        f"the kubelet would panic: a container that is admitted again has {resource} {', '.join(ids)}, which the "
        "device plugin does not list",
        WOULD_PANIC,
    )


def beyond_masks(ids: Sequence[int]) -> Refused:
    """Returns the refusal for a NUMA id that exceeds the kubelet's masks."""
    beyond = ", ".join([str(numa_id) for numa_id in ids if numa_id >= KUBELET_BITS])
    return Refused(
        f"the kubelet would panic: its masks have {KUBELET_BITS} bits, one for each NUMA id, and the machine has NUMA "
        f"id {beyond}",
        WOULD_PANIC,
    )


def unmeasured(ids: Sequence[int], lengths: Sequence[int]) -> MaskSet:
    """Returns the masks whose average distance is out of range, for machines with these NUMA ids and row lengths."""
    count = len(ids)
    all_nodes = (1 << count) - 1
    measured = subsets(all_nodes)
    for position, length in enumerate(lengths):
        within = sum(1 << column for column, numa_id in enumerate(ids) if numa_id < length)
        measured &= subsets(within) | subsets(all_nodes & ~(1 << position))
    return subsets(all_nodes) & ~measured


def compares_unmeasured(groups: Sequence[Hints], unmeasured: MaskSet, count: int, unordered: int) -> bool:
    """Returns whether a merge of these hints compares two masks of the same size, either of them unmeasured.

    The first `unordered` groups are device resources. The kubelet merges them in random order (it ranges over a map),
    and a panic in any of the orders counts.
    """
    # HintMerger.compare reads distances only of masks of the same size (NUMAInfo.Closest).
    everything = (1 << count) - 1
    reached = everything
    preferred = subsets(everything)
    for group in groups:
        reached &= union(masks_in(group.fits)) if group.fits else everything
        preferred &= group.preferred
    # No merged mask is unmeasured, so no comparison can be out of range.
    if not subsets(reached) & unmeasured or not groups:
        return False
    if preferred:
        least = min(mask.bit_count() for mask in masks_in(preferred))
        rivals = [mask for mask in masks_in(preferred) if mask.bit_count() == least]
        # The narrowest preferred masks are always compared with each other.
        if len(rivals) > 1 and any(unmeasured >> mask & 1 for mask in rivals):
            return True
    if any(group.fits.bit_count() > _MOST_STEPS for group in groups):
        return True
    narrowest = max((min(map(int.bit_count, masks_in(group.fits))) for group in groups if group.fits), default=0)
    lists = [_options(group, everything) for group in groups]
    walk = _Walk(unmeasured, narrowest)
    return any(walk.panics([*first, *lists[unordered:]], everything) for first in permutations(lists[:unordered]))


def _options(group: Hints, everything: Mask) -> list[_Option]:
    """Returns the hints in the order of bitmask.IterateBitMasks; a group without hints restricts nothing."""
    masks = sorted(masks_in(group.fits), key=lambda mask: (mask.bit_count(), tuple(members(mask))))
    return [(mask, bool(group.preferred >> mask & 1)) for mask in masks] or [(everything, False)]


class _Panic(Exception):  # noqa: N818 - the kubelet's, not a fault here
    pass


class _Preferred(Exception):  # noqa: N818 - the end of a walk
    pass


class _Walk:
    """Tries the permutations of hints in order, up to the first preferred result: from there on the kubelet compares
    preferred masks only. The best mask after a group depends on the merged mask and the best so far, so it is cached.
    """

    def __init__(self, unmeasured: MaskSet, narrowest: int) -> None:
        self._unmeasured = unmeasured
        self._narrowest = narrowest
        self._steps = 0
        self._lists: list[list[_Option]] = []
        self._known: dict[tuple[int, Mask, Mask, Mask], Mask] = {}

    def panics(self, lists: list[list[_Option]], everything: Mask) -> bool:
        self._lists, self._known = lists, {}
        try:
            self._visit(0, everything, -1, 0)
        # From here on the kubelet compares preferred masks, which `compares_unmeasured` has checked.
        except _Preferred:
            return False
        except _Panic:
            return True
        return False

    def _visit(self, number: int, merged: Mask, same: Mask, best: Mask) -> Mask:
        """Returns the best mask after all hints of the groups from `number` on.

        `same` is the mask that all groups so far have and prefer, -1 before the first group and 0 without such a mask.
        """
        if number == len(self._lists):
            if same:
                raise _Preferred
            return self._fold(best, merged)
        key = number, merged, same, best
        cached = self._known.get(key)
        if cached is not None:
            return cached
        for mask, preferred in self._lists[number]:
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise _Panic
            if merged & mask:
                best = self._visit(number + 1, merged & mask, mask if preferred and same in (-1, mask) else 0, best)
        self._known[key] = best
        return best

    def _fold(self, best: Mask, mask: Mask) -> Mask:
        # HintMerger.compare of two masks that are not preferred.
        if not best or best == mask:
            return mask
        before, now, aim = best.bit_count(), mask.bit_count(), self._narrowest
        if before == now:
            if self._unmeasured >> best & 1 or self._unmeasured >> mask & 1:
                raise _Panic
            # The kubelet keeps the closer mask; both are measured, so later comparisons are the same.
            return best
        if before > aim:
            return mask if now < before else best
        return mask if before < now <= aim else best


Hazard = Literal["distances", "numa-ids", "page-sizes", "distributed-cpus", "shared-cpus", "reserved-memory"]
HAZARDS: Final[tuple[Hazard, ...]] = get_args(Hazard)


def hazards(node: Kubelet, *, knows_cores: bool = True) -> tuple[Hazard, ...]:
    """Returns the hazards of a node: three panics (panics.py), a search that may not end, and resources given twice.

    "shared-cpus": a core or a socket has more CPUs than the machine's average. The kubelet takes it as a whole if as
    many of its CPUs as the average are free, with its busy and reserved CPUs (takeFullCores, takeFullSockets). Reports
    of amounts do not tell the cores and sockets.
    "reserved-memory": reservedMemory exceeds the memory of a NUMA node, and the kubelet gives memory there without a
    limit (memory_tables.py).
    """
    memory = None if node.memory is None else node.memory.policy
    cpu, behaviour = node.settings.cpu, node.settings.behaviour
    present: dict[Hazard, bool] = {
        "distances": node.topology_manager.unmeasured != 0,
        "numa-ids": node.topology_manager.is_beyond_masks or (memory is not None and memory.is_beyond_masks),
        "page-sizes": memory is not None and bool(memory.lacking),
        "distributed-cpus": cpu is not None
        and cpu.full_pcpus_only
        and cpu.distribute_across_numa
        and not behaviour.remainder_counts_whole_groups,
        "shared-cpus": knows_cores and cpu is not None and not node.topology.is_even,
        "reserved-memory": memory is not None and bool(memory.wrapped),
    }
    return tuple([hazard for hazard in HAZARDS if present[hazard]])
