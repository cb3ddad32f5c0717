"""Sets of NUMA nodes as integers, and sets of such sets as integers again.

A *mask* has bit i set when the node at position i is in it (pkg/kubelet/cm/topologymanager/bitmask). A *mask set* has
bit m set when mask m is in it: with 8 nodes there are 255 masks, so a list of hints is a number of 256 bits. Common
hints are one AND, "some hint lies above m" is one AND with the supersets of m; no list of hints is ever walked twice.

All masks of a machine double with every node, here as in the kubelet; `MAX_NODES` is where that ends for us.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from topowise.bounded import Bounded

Mask = int
MaskSet = int

MAX_NODES: Final = 16
# A mask of the kubelet has a bit for each NUMA *id*. For a larger id it gets a nil mask, and panics (panics.py).
KUBELET_BITS: Final = 64
# Over more nodes there are up to 65,536 masks, two megabytes of them: no more than so many sets of these are kept.
_FEW_NODES: Final = 8
_MANY_KEPT: Final = 16


def members(bits: int) -> Iterator[int]:
    """The positions of the bits that are set, ascending."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def masks_in(masks: MaskSet) -> tuple[Mask, ...]:
    """The masks of a set, ascending; the same sets come again and again."""
    return _few_in(masks) if masks.bit_length() <= 1 << _FEW_NODES else _many_in(masks)


def _listed(masks: MaskSet) -> tuple[Mask, ...]:
    return tuple(members(masks))


_few_in = lru_cache(maxsize=4096)(_listed)
_many_in = lru_cache(maxsize=_MANY_KEPT)(_listed)


def lowest(bits: int, count: int) -> int:
    """The lowest `count` of the bits that are set."""
    if bits.bit_count() <= count:
        return bits
    rest = bits
    for _ in range(count):
        rest &= rest - 1
    return bits & ~rest


def union(several: Iterable[int]) -> int:
    """The bits that are set in any of them."""
    found = 0
    for bits in several:
        found |= bits
    return found


def mask_of(positions: Iterable[int]) -> Mask:
    """The mask with these positions set."""
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask


def submasks(nodes: Mask) -> tuple[Mask, ...]:
    """Every mask but the empty one over these nodes, ascending (IterateBitMasks; the order never matters)."""
    return _of_few(nodes) if nodes.bit_count() <= _FEW_NODES else _of_many(nodes)


def _submasks(nodes: Mask) -> tuple[Mask, ...]:
    found = [0]
    for node in members(nodes):
        found += [mask | 1 << node for mask in found]
    return tuple(found[1:])


_of_few = lru_cache(maxsize=1024)(_submasks)
_of_many = lru_cache(maxsize=_MANY_KEPT)(_submasks)


@lru_cache(maxsize=64)
def sized_submasks(nodes: Mask, size: int) -> tuple[Mask, ...]:
    """Those of `submasks` that have `size` nodes."""
    return tuple(mask for mask in submasks(nodes) if mask.bit_count() == size)


@lru_cache(maxsize=32)
def by_size(count: int) -> tuple[MaskSet, ...]:
    """At index k the masks of k nodes, for a machine of `count` nodes."""
    sets = [0] * (count + 1)
    for mask in submasks((1 << count) - 1):
        sets[mask.bit_count()] |= 1 << mask
    return tuple(sets)


@lru_cache(maxsize=32)
def by_groups(groups: tuple[Mask, ...], count: int) -> tuple[MaskSet, ...]:
    """At index k the masks, for a machine of `count` nodes, that have nodes of k of the groups."""
    everything = (1 << count) - 1
    sets = [subsets(everything)]
    for group in groups:
        without = subsets(everything & ~group)
        pairs = zip((*sets, 0), (0, *sets), strict=True)
        sets = [same & without | fewer & ~without for same, fewer in pairs]
    return tuple(sets)


@lru_cache(maxsize=1024)
def subsets(mask: Mask) -> MaskSet:
    """Every mask within `mask`, the empty one included."""
    found = 1
    for node in members(mask):
        found |= found << (1 << node)
    return found


@lru_cache(maxsize=1024)
def supersets(mask: Mask, count: int) -> MaskSet:
    """Every mask over `count` nodes that contains `mask`."""
    found = 1
    for node in range(count):
        higher = found << (1 << node)
        found = higher if mask >> node & 1 else found | higher
    return found


def sums(values: Iterable[int]) -> list[int]:
    """At index m the sum of the values of the nodes in mask m."""
    table = [0]
    for value in values:
        table += [total + value for total in table]
    return table


def reaching(values: tuple[int, ...], wanted: int) -> MaskSet:
    """The masks whose nodes have `wanted` together; nodes in the same state ask this again and again."""
    if len(values) <= _FEW_NODES:
        return _few_reach(values, wanted)
    return _many_reach.once((values, wanted), lambda: _reaching(values, wanted))


def _reaching(values: tuple[int, ...], wanted: int) -> MaskSet:
    digits = ["1" if total >= wanted else "0" for total in sums(values)]
    digits[0] = "0"
    digits.reverse()
    return int("".join(digits), 2)


_few_reach = lru_cache(maxsize=16384)(_reaching)
# A set of masks over 16 nodes takes 8 KiB, and tenants make up amounts.
_many_reach: Bounded[tuple[tuple[int, ...], int], MaskSet] = Bounded(32 << 20, lambda _, found: found.bit_length() >> 3)
