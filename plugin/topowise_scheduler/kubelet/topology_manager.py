"""The topology manager: merges the hints of all providers and decides (pkg/kubelet/cm/topologymanager).

The kubelet tries the cross product of all providers' hints, 255^k permutations on 8 nodes for k resources. The result
is the maximum of a total order that puts preferred candidates first, so the model needs no product:

1. A preferred candidate has the *same* preferred mask from every resource: the intersection of the preferred sets.
2. If the intersection is empty, the best candidate is not preferred. The model tries masks in the kubelet's order. A
   mask is reachable if it is the AND of a hint of every resource. Mostly one resource has the mask, and every other
   resource has a superset of it.

`tests/unit/scheduler/kubelet/test_merge.py` compares this with the product itself.

Distances are those of the ACPI HMAT, in the unit of the SLIT, whose local distance is 10. The SLIT contains what a
firmware author wrote, and often has equal entries for a second socket and a CXL expander. HMAT has each node's memory
latency and bandwidth from its best CPUs, the initiators. By the definition of the SLIT, a distance is 10 times the
latency from there over the latency of the initiator's own memory. Without latencies, the ratio of bandwidths replaces
it. All other pairs keep their SLIT distance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from operator import add, mul, sub
from typing import Final

from topowise.bounded import Bounded
from topowise_scheduler.kubelet import panics
from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.hints import NO_AFFINITY, Hint, Hints
from topowise_scheduler.kubelet.machine import NumaNode
from topowise_scheduler.kubelet.masks import (
    KUBELET_BITS,
    Mask,
    MaskSet,
    by_size,
    masks_in,
    members,
    submasks,
    supersets,
)

Rows = tuple[tuple[int, ...], ...]

_LOCAL: Final = 10
_MAX_DISTANCE: Final = 255
_DEFAULT_REMOTE: Final = 20


def hmat_distances(nodes: Sequence[NumaNode], distances: Rows | None) -> Rows | None:
    """Returns the distances by position, or None without measurements that differ from the SLIT."""
    if not any(node.initiators for node in nodes):
        return None
    positions = {node.id: position for position, node in enumerate(nodes)}
    rows = [
        list(distances[row])
        if distances
        else [_LOCAL if row == column else _DEFAULT_REMOTE for column in range(len(nodes))]
        for row in range(len(nodes))
    ]
    for at, node in enumerate(nodes):
        for initiator in node.initiators:
            source = positions.get(initiator)
            if source is None or source == at:
                continue
            measured = _relative(nodes[source], node)
            if measured:
                rows[source][at] = rows[at][source] = measured
    measured_rows = tuple(map(tuple, rows))
    return None if measured_rows == distances else measured_rows


def _relative(source: NumaNode, target: NumaNode) -> int:
    """Returns the distance from the initiator's latencies or bandwidths, rounded half up; 0 if unmeasured."""
    if source.id not in source.initiators:
        return 0
    if source.read_latency and target.read_latency:
        far, near = target.read_latency, source.read_latency
    else:
        far, near = source.read_bandwidth, target.read_bandwidth
    if not far or not near:
        return 0
    return max(_LOCAL, min(_MAX_DISTANCE, (2 * _LOCAL * far + near) // (2 * near)))


# (node, node) -> the node to take: the vote of KEP-6007 (scopes.py).
Fitter = Callable[[int, int], int]


class TopologyManager:
    """Policy and distances of a node; stateless, so all forks of a kubelet share it.

    `all_nodes` are the machine's NUMA nodes by ascending id, including nodes that are not modelled (Machine.modelled).
    """

    def __init__(
        self, settings: TopologySettings, nodes: Sequence[NumaNode], all_nodes: Sequence[NumaNode] | None = None
    ) -> None:
        self.settings = settings
        self.count = len(nodes)
        self.default: Mask = (1 << self.count) - 1
        self._ids = tuple([node.id for node in nodes])
        self._all_ids = tuple([node.id for node in all_nodes or nodes])
        # By position, None if a node's row is missing.
        self.distances = _distances(nodes, self._all_ids) if all(node.distances for node in nodes) else None
        # Whether a NUMA id exceeds the kubelet's masks. Then every merge panics.
        self.is_beyond_masks = settings.policy != "none" and self._all_ids[-1] >= KUBELET_BITS
        # The distances that rank masks under prefer-closest-numa-nodes, and the masks with an index out of range.
        self._ranking: tuple[tuple[int, ...], ...] | None = None
        self.unmeasured: MaskSet = 0
        if settings.prefer_closest and settings.policy in ("best-effort", "restricted") and self.distances is not None:
            self._ranking = _by_id(nodes)
            self.unmeasured = panics.unmeasured(self._ids, [len(node.distances or ()) for node in nodes])
        # Measured distances, for scores only: the kubelet does not read HMAT.
        self.nearness = hmat_distances(nodes, self.distances)
        self._sequences: dict[int, tuple[Mask, ...]] = {}

    @property
    def unmeasured_ids(self) -> tuple[int, ...]:
        """Returns the NUMA ids without an entry in the kubelet's distances, if it uses distances."""
        return tuple([numa_id for at, numa_id in enumerate(self._ids) if self.unmeasured >> (1 << at) & 1])

    def decide(self, groups: Sequence[Hints], fitter: Fitter | None = None, unordered: int = 0) -> tuple[Hint, bool]:
        """Returns the hint to store, and whether the pod is admitted (policy_*.go, Merge and canAdmitPodResult).

        The first `unordered` groups come in random order. Raises Refused where the kubelet would panic.
        """
        policy = self.settings.policy
        if policy == "none":
            return NO_AFFINITY, True
        if self.is_beyond_masks:
            raise panics.beyond_masks(self._all_ids)
        if self.unmeasured and panics.compares_unmeasured(groups, self.unmeasured, self.count, unordered):
            raise panics.distances_missing(self.unmeasured_ids)
        if policy == "single-numa-node":
            best = self._merge_single(groups, fitter)
            # policy_single_numa_node.go stores nil instead of the default mask: always on a machine with a single node.
            if best.mask == self.default:
                best = Hint(None, best.preferred)
            return best, best.preferred
        best = self.merge(groups)
        return best, best.preferred or policy == "best-effort"

    def merge(self, groups: Sequence[Hints]) -> Hint:
        """Returns the best hint over all resources (HintMerger.Merge). No hints for a resource prevent `preferred`."""
        possible = [group for group in groups if group.fits]
        if len(possible) == len(groups):
            if not groups:
                return Hint(self.default, True)
            common = groups[0].preferred
            for group in groups:
                common &= group.preferred
            if common:
                return Hint(min(masks_in(common), key=self._rank.__getitem__), True)
        return Hint(self._best_reachable([group.fits for group in possible]), False)

    def order(self, groups: Sequence[Hints]) -> Callable[[Hint], tuple[bool, int]]:
        """Returns a sort key for merge results of these groups in the kubelet's order, the best first."""
        narrowest = max(map(self._narrowest, (group.fits for group in groups if group.fits)), default=self.count)
        positions = {mask: position for position, mask in enumerate(self._sequence(narrowest))}

        def key(hint: Hint) -> tuple[bool, int]:
            mask = hint.mask or self.default
            return not hint.preferred, self._rank[mask] if hint.preferred else positions[mask]

        return key

    def _merge_single(self, groups: Sequence[Hints], fitter: Fitter | None) -> Hint:
        # policy_single_numa_node.go: only preferred hints of a single node take part, so all must name the same node.
        common = by_size(self.count)[1]
        for group in groups:
            common &= group.preferred
        # No provider has a preference: the default affinity is preferred.
        if not groups:
            return Hint(self.default, True)
        if not common:
            return Hint(self.default, False)
        if fitter is None:
            return Hint(next(members(common)), True)
        # The vote is not transitive with three nodes or more: a left fold over ascending ids, not a maximum.
        best, *challengers = [mask.bit_length() - 1 for mask in masks_in(common)]
        for node in challengers:
            best = fitter(best, node)
        return Hint(1 << best, True)

    @cached_property
    def _rank(self) -> tuple[int, ...]:
        count, ranking = self.count, self._ranking
        return _known_ranks.once((count, ranking), lambda: _ranks(count, ranking))

    def _best_reachable(self, groups: Sequence[MaskSet]) -> Mask:
        """Returns the best mask, in the order of HintMerger.compare, that is the AND of a mask of each group."""
        if not groups:
            # HintMerger.Merge without a result returns the default affinity.
            return self.default
        # BestNonPreferredAffinityCount (maxOfMinAffinityCounts).
        narrowest = max(map(self._narrowest, groups))
        reached: list[int] | None = None
        for mask in self._sequence(narrowest):
            above = supersets(mask, self.count)
            if not all(group & above for group in groups):
                continue
            # A group has the mask, and every other group has a superset: their AND is the mask.
            if any(group >> mask & 1 for group in groups):
                return mask
            # Computed only if no group has the mask itself, which is rare.
            if reached is None:
                reached = _products(groups, self.count)
            if reached[mask]:
                return mask
        return self.default

    def _narrowest(self, group: MaskSet) -> int:
        for size, masks in enumerate(by_size(self.count)):
            if group & masks:
                return size
        raise AssertionError("a group without hints was left out before")

    def _sequence(self, narrowest: int) -> tuple[Mask, ...]:
        """Returns all masks, best first: with `narrowest` nodes, then fewer, the closest number first, then more."""
        masks = self._sequences.get(narrowest)
        if masks is None:
            sizes = (*range(narrowest, 0, -1), *range(narrowest + 1, self.count + 1))
            masks = tuple(
                mask
                for size in sizes
                for mask in sorted(masks_in(by_size(self.count)[size]), key=self._rank.__getitem__)
            )
            self._sequences[narrowest] = masks
        return masks


def _products(groups: Iterable[MaskSet], count: int) -> list[int]:
    """Returns at index m in how many ways m is the AND of a mask of each group.

    The ways to m or a superset are the product of each group's supersets of m. Subtracting the ways to proper supersets
    leaves m (Möbius inversion). Trying pairs of masks instead takes minutes with sixteen nodes.
    """
    ways = [1] * (1 << count)
    for group in groups:
        above = [digit == "1" for digit in reversed(f"{group:0{1 << count}b}")]
        ways = [*map(mul, ways, _over_supersets(above, count, add))]
    return _over_supersets(ways, count, sub)


def _over_supersets(values: Iterable[int], count: int, combine: Callable[[int, int], int]) -> list[int]:
    """With `add`, returns at index m the sum of the values at m and all its supersets; `sub` reverses that."""
    result = [*values]
    for step in (1 << node for node in range(count)):
        for low in range(0, 1 << count, 2 * step):
            middle = low + step
            result[low:middle] = map(combine, result[low:middle], result[middle : middle + step])
    return result


def _ranks(count: int, distances: tuple[tuple[int, ...], ...] | None) -> tuple[int, ...]:
    """Returns at index m the rank of mask m, 0 the best: fewer nodes, then shorter distances, then the smaller mask.

    Masks of the same size have equally many distances, so sums order them like averages (numa_info.go, Closest).
    """

    def fitness(mask: Mask) -> tuple[int, int, int]:
        nodes = tuple(members(mask))
        total = sum(distances[row][column] for row in nodes for column in nodes) if distances else 0
        return len(nodes), total, mask

    ranks = [0] * (1 << count)
    for rank, mask in enumerate(sorted(submasks((1 << count) - 1), key=fitness)):
        ranks[mask] = rank
    return tuple(ranks)


# The ranks of 16 nodes take two megabytes, and a report may have new distances each time.
_known_ranks: Bounded[tuple[int, tuple[tuple[int, ...], ...] | None], tuple[int, ...]]
_known_ranks = Bounded(8 << 20, lambda _, ranks: 36 * len(ranks))


def _distances(nodes: Sequence[NumaNode], all_ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Returns the distances by position. A row is by NUMA id, or by position among all nodes if ids have gaps."""
    positions = {numa_id: position for position, numa_id in enumerate(all_ids)}
    rows = []
    for node in nodes:
        row = node.distances or ()
        by_id = len(row) > all_ids[-1]
        rows.append(tuple([row[target.id if by_id else positions[target.id]] for target in nodes]))
    return tuple(rows)


def _by_id(nodes: Sequence[NumaNode]) -> tuple[tuple[int, ...], ...]:
    """Returns the distances as the kubelet reads them: by NUMA id, whichever node an entry is for; 0 out of range."""
    rows = [node.distances or () for node in nodes]
    return tuple([tuple([row[target.id] if target.id < len(row) else 0 for target in nodes]) for row in rows])
