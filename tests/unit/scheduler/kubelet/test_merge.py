"""The merge without the cross product equals the cross product."""

from __future__ import annotations

import functools
import itertools
import operator
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise_scheduler.explain.merge_table import merges
from topowise_scheduler.kubelet import NumaNode
from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.hints import Hint, Hints
from topowise_scheduler.kubelet.masks import by_size, mask_of, members, supersets
from topowise_scheduler.kubelet.topology_manager import TopologyManager


def _manager(distances: list[list[int]], policy: str, closest: bool) -> TopologyManager:
    nodes = [NumaNode(id=node, memory=0, distances=tuple(row)) for node, row in enumerate(distances)]
    return TopologyManager(TopologySettings(policy, "container", prefer_closest=closest), nodes)


def _lists(groups: list[Hints], policy: str) -> list[list[tuple[int | None, bool]]]:
    """Hints that a policy considers; a None mask fits on no NUMA node."""
    lists: list[list[tuple[int | None, bool]]] = [
        [(mask, bool(group.preferred >> mask & 1)) for mask in members(group.fits)] or [(None, False)]
        for group in groups
    ]
    if policy == "single-numa-node":
        lists = [
            [(mask, good) for mask, good in hints if good and (mask is None or mask.bit_count() == 1)]
            for hints in lists
        ]
    return lists


def _product(groups: list[Hints], distances: list[list[int]], policy: str, closest: bool) -> Hint:
    """The merge as written in pkg/kubelet/cm/topologymanager/policy.go: compares every permutation."""
    default = (1 << len(distances)) - 1
    lists = _lists(groups, policy) or [[(None, True)]]
    narrowest = max(min((mask.bit_count() for mask, _ in hints if mask is not None), default=0) for hints in lists)

    def average(mask: int) -> float:
        nodes = list(members(mask))
        return sum(distances[row][column] for row in nodes for column in nodes) / len(nodes) ** 2

    def fitness(mask: int) -> tuple[float, ...]:
        if closest and policy != "single-numa-node":
            return mask.bit_count(), average(mask), mask
        return mask.bit_count(), mask

    def key(hint: Hint) -> tuple[float, ...]:
        assert hint.mask is not None
        count = hint.mask.bit_count()
        if hint.preferred:
            return 0, *fitness(hint.mask)
        if count == narrowest:
            return 1, 0, *fitness(hint.mask)
        if count < narrowest:
            return 2, -count, *fitness(hint.mask)
        return 3, count, *fitness(hint.mask)

    best: Hint | None = None
    for permutation in itertools.product(*lists):
        masks = [mask for mask, _ in permutation if mask is not None]
        merged = default
        for mask in masks:
            merged &= mask
        if not merged:
            continue
        candidate = Hint(merged, all(good for _, good in permutation) and len(set(masks)) <= 1)
        if best is None or key(candidate) < key(best):
            best = candidate
    return best or Hint(default, False)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[Hints], list[list[int]]]:
    count = draw(st.integers(1, 4))
    full = (1 << (1 << count)) - 2
    groups = []
    for _ in range(draw(st.integers(0, 4))):
        fits = draw(st.integers(0, full)) & full
        groups.append(Hints(fits, fits & draw(st.integers(0, full))))
    distances = [
        [10 if row == column else draw(st.sampled_from((11, 20, 32))) for column in range(count)]
        for row in range(count)
    ]
    return groups, distances


@given(_cases(), st.sampled_from(("best-effort", "restricted", "single-numa-node")), st.booleans())
def test_merge_equals_the_cross_product(case: tuple[list[Hints], list[list[int]]], policy: str, closest: bool) -> None:
    groups, distances = case
    merged, admitted = _manager(distances, policy, closest).decide(groups)
    expected = _product(groups, distances, policy, closest)
    if policy == "single-numa-node" and expected.mask == (1 << len(distances)) - 1:
        expected = Hint(None, expected.preferred)
    assert merged == expected
    assert admitted == (expected.preferred or policy == "best-effort")


def test_sixteen_nodes_are_merged_in_a_second() -> None:
    """Each of three resources has about 15,000 masks, which include node N and exclude node N-1."""
    manager = _manager([[10] * 16] * 16, "best-effort", False)
    of_six_or_more = functools.reduce(operator.or_, by_size(16)[6:])
    having = [supersets(1 << node, 16) for node in range(3)]
    groups = [Hints(of_six_or_more & having[node] & ~having[node - 1], 0) for node in range(3)]
    began = time.process_time()
    assert manager.decide(groups)[0] == Hint(mask_of(range(3, 9)), False)
    # The limit is five times the usual time; a walk over pairs of masks takes 30 seconds.
    assert time.process_time() - began < 5


@given(_cases(), st.sampled_from(("best-effort", "restricted", "single-numa-node")), st.booleans())
def test_the_table_has_every_combination_once_and_the_decision_first(
    case: tuple[list[Hints], list[list[int]]], policy: str, closest: bool
) -> None:
    groups, distances = case
    manager = _manager(distances, policy, closest)
    table = merges(manager, groups)
    expected = Hint(table[0].hint.mask, table[0].hint.preferred) if table else Hint(manager.default, False)
    if policy == "single-numa-node" and expected.mask == manager.default:
        expected = Hint(None, expected.preferred)
    assert manager.decide(groups)[0] == expected
    combinations = [
        [mask for mask, _ in entry if mask is not None] for entry in itertools.product(*_lists(groups, policy))
    ]
    common = [functools.reduce(operator.and_, masks, manager.default) for masks in combinations]
    assert sum(entry.ways for entry in table) == sum(mask != 0 for mask in common)
    for entry in table:
        named = [mask for mask in entry.masks if mask is not None]
        assert functools.reduce(operator.and_, named, manager.default) == entry.hint.mask


def test_the_table_lists_masks_as_wide_as_the_widest_group_needs_before_narrower_masks() -> None:
    # The narrowest mask of the second group has two nodes (maxOfMinAffinityCounts).
    groups = [Hints(mask_of((0b001, 0b011, 0b111)), 0), Hints(mask_of((0b011, 0b111)), 0)]
    table = merges(_manager([[10] * 3] * 3, "best-effort", False), groups)
    assert [entry.hint.mask for entry in table] == [0b011, 0b001, 0b111]


def test_more_than_eight_nodes_have_no_table() -> None:
    group = Hints(0b10, 0b10)
    assert len(merges(_manager([[10] * 8] * 8, "restricted", False), [group])) == 1
    with pytest.raises(ValueError, match="9 NUMA nodes"):
        merges(_manager([[10] * 9] * 9, "restricted", False), [group])
