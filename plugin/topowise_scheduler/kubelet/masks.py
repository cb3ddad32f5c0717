"""Sets of NUMA nodes as integers, and sets of such sets as integers.

A *mask* has bit i set if it contains the node at position i (pkg/kubelet/cm/topologymanager/bitmask). A *mask set* has
bit m set if it contains mask m. 8 nodes have 255 masks, so a list of hints is a number of 256 bits. Common hints are
an AND, and "a hint contains m" is an AND with the supersets of m. No list of hints is walked twice.

Every node doubles the number of masks, here as in the kubelet; the model's limit is `MAX_NODES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from topowise.bounded import Bounded

Mask = int
MaskSet = int

MAX_NODES: Final = 16
# A kubelet mask has a bit per NUMA *id*. For a larger id NewBitMask returns nil, and the kubelet panics (panics.py).
KUBELET_BITS: Final = 64
# More nodes have up to 65,536 masks, two megabytes: the caches keep at most this number of such sets.
_FEW_NODES: Final = 8
_LARGE_CACHE: Final = 16


def members(bits: int) -> Iterator[int]:
    """Yields the positions of the set bits, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def masks_in(masks: MaskSet) -> tuple[Mask, ...]:
    """Returns the masks of a set, ascending; cached, because the same sets recur."""
    return _small_members(masks) if masks.bit_length() <= 1 << _FEW_NODES else _large_members(masks)


def _members(masks: MaskSet) -> tuple[Mask, ...]:
    return tuple(members(masks))


_small_members = lru_cache(maxsize=4096)(_members)
_large_members = lru_cache(maxsize=_LARGE_CACHE)(_members)


def lowest(bits: int, count: int) -> int:
    """Returns the lowest `count` set bits."""
    if bits.bit_count() <= count:
        return bits
    rest = bits
    for _ in range(count):
        # Clears the lowest set bit.
        rest &= rest - 1
    return bits & ~rest


def union(integers: Iterable[int]) -> int:
    """Returns the bits that are set in any of the integers."""
    result = 0
    for bits in integers:
        result |= bits
    return result


def mask_of(positions: Iterable[int]) -> Mask:
    """Returns the mask with these positions set."""
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask


def submasks(nodes: Mask) -> tuple[Mask, ...]:
    """Returns every non-empty mask over these nodes, ascending (IterateBitMasks; the order never matters)."""
    return _small_submasks(nodes) if nodes.bit_count() <= _FEW_NODES else _large_submasks(nodes)


def _submasks(nodes: Mask) -> tuple[Mask, ...]:
    masks = [0]
    for node in members(nodes):
        masks += [mask | 1 << node for mask in masks]
    return tuple(masks[1:])


_small_submasks = lru_cache(maxsize=1024)(_submasks)
_large_submasks = lru_cache(maxsize=_LARGE_CACHE)(_submasks)


@lru_cache(maxsize=64)
def sized_submasks(nodes: Mask, size: int) -> tuple[Mask, ...]:
    """Returns the `submasks` with `size` nodes."""
    return tuple(mask for mask in submasks(nodes) if mask.bit_count() == size)


@lru_cache(maxsize=32)
def by_size(count: int) -> tuple[MaskSet, ...]:
    """Returns at index k the masks of k nodes, for a machine of `count` nodes."""
    sets = [0] * (count + 1)
    # The empty mask is not among the submasks, so index 0 is empty.
    for mask in submasks((1 << count) - 1):
        sets[mask.bit_count()] |= 1 << mask
    return tuple(sets)


@lru_cache(maxsize=32)
def by_groups(groups: tuple[Mask, ...], count: int) -> tuple[MaskSet, ...]:
    """Returns at index k the masks with nodes of k of the groups, for a machine of `count` nodes."""
    everything = (1 << count) - 1
    sets = [subsets(everything)]
    for group in groups:
        without = subsets(everything & ~group)
        # A mask without nodes of the group keeps its index; every other mask moves up by one.
        pairs = zip((*sets, 0), (0, *sets), strict=True)
        sets = [same & without | fewer & ~without for same, fewer in pairs]
    return tuple(sets)


@lru_cache(maxsize=1024)
def subsets(mask: Mask) -> MaskSet:
    """Returns every mask within `mask`, including the empty mask."""
    masks = 1
    for node in members(mask):
        masks |= masks << (1 << node)
    return masks


@lru_cache(maxsize=1024)
def supersets(mask: Mask, count: int) -> MaskSet:
    """Returns every mask over `count` nodes that contains `mask`."""
    masks = 1
    for node in range(count):
        higher = masks << (1 << node)
        masks = higher if mask >> node & 1 else masks | higher
    return masks


def sums(values: Iterable[int]) -> list[int]:
    """Returns at index m the sum of the values of the nodes in mask m."""
    table = [0]
    for value in values:
        table += [total + value for total in table]
    return table


def covers(total: int, wanted: int) -> bool:
    """Returns whether a sum of unsigned 64-bit numbers reaches `wanted`. A negative number has wrapped around: for the
    kubelet it is nearly 2^64 (memory_tables.py)."""
    return total >= wanted or total < 0


def reaching(values: tuple[int, ...], wanted: int) -> MaskSet:
    """Returns the masks whose nodes reach `wanted` in sum; cached, because nodes in the same state recur."""
    if len(values) <= _FEW_NODES:
        return _few_reach(values, wanted)
    return _many_reach.once((values, wanted), lambda: _reaching(values, wanted))


def _reaching(values: tuple[int, ...], wanted: int) -> MaskSet:
    digits = ["1" if covers(total, wanted) else "0" for total in sums(values)]
    # The empty mask is no hint, even for a request of 0.
    digits[0] = "0"
    digits.reverse()
    return int("".join(digits), 2)


_few_reach = lru_cache(maxsize=16384)(_reaching)
# A set of masks over 16 nodes takes 8 KiB, and clients choose the amounts.
_many_reach: Bounded[tuple[tuple[int, ...], int], MaskSet] = Bounded(32 << 20, lambda _, masks: masks.bit_length() >> 3)
