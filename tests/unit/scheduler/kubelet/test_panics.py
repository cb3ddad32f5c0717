"""The model refuses a pod with WOULD_PANIC exactly if the kubelet panics at the admission."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubelets import kubelet_of, machine_of, pod_of
from sandbox.judging import judge
from topowise import pods
from topowise_scheduler.kubelet import Kubelet, Machine, MemoryReservation, NumaNode
from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.hints import WOULD_PANIC, Hint, Hints, Refused
from topowise_scheduler.kubelet.masks import mask_of, members
from topowise_scheduler.kubelet.panics import hazards
from topowise_scheduler.kubelet.topology_manager import TopologyManager
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts.engine import Engine, Outcome

CLOSEST = {"prefer-closest-numa-nodes": "true"}
SMALL = {"cpu": "2", "memory": "1Gi"}
PAGES = {**SMALL, "hugepages-2Mi": "2Mi"}


def _numbered(machine: Machine, *ids: int, rows: list[list[int]] | None = None) -> Machine:
    """The machine with NUMA ids `ids`, and with distances as Linux prints: an entry for each node."""
    rows = rows or [[10 if row == column else 20 for column in ids] for row in ids]
    numa = [
        msgspec.structs.replace(node, id=numa_id, distances=tuple(row))
        for node, numa_id, row in zip(machine.numa, ids, rows, strict=True)
    ]
    return msgspec.structs.replace(machine, numa=tuple(numa))


def _on(machine: Machine, policy: str = "restricted", **fields: Any) -> Kubelet:
    reserved = (MemoryReservation(machine.numa[0].id, {"memory": "1Gi"}),)
    return kubelet_of(machine, topologyManagerPolicy=policy, reservedMemory=reserved, **fields)


def _judged(kubelet: Kubelet, pod: pods.Pod) -> tuple[Outcome, str]:
    """Outcome and reason of the array engine."""
    engine = Engine()
    engine.put("n", kubelet)
    judgement = judge(engine, PodRequests(pods.needs(pod)))
    return Outcome(judgement.outcome[0]), judgement.reason_of(0)


@pytest.mark.parametrize("policy", ["best-effort", "restricted"])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_distances_without_an_entry_for_a_numa_id(policy: str, scope: str) -> None:
    kubelet = _on(
        _numbered(machine_of(4, 4), 0, 2),
        policy,
        topologyManagerScope=scope,
        topologyManagerPolicyOptions=CLOSEST,
    )
    pod = pod_of("p", SMALL)
    assert _judged(kubelet, pod) == (Outcome.UNRESOLVABLE, WOULD_PANIC)
    refused = kubelet.admit(pod)
    assert (refused.admitted, refused.stage, refused.reason) == (False, "topology", WOULD_PANIC)
    assert "no entry for NUMA id 2, as the ids of this machine have gaps" in refused.message
    assert refused.rejection is not None
    assert (refused.rejection.container, refused.rejection.provider) == (
        "c0" if scope == "container" else "",
        "topology",
    )
    # A pod without hints compares no masks, so the kubelet does not panic.
    assert kubelet.admit(pod_of("shared", {"memory": "1Gi"})).admitted
    assert _judged(kubelet, pod_of("shared", {"memory": "1Gi"})) == (Outcome.FITS, "")
    assert hazards(kubelet) == ("distances",)


def test_the_kubelet_panics_only_where_it_compares() -> None:
    """Only NUMA id 2 has no entry. A pod that fits on a single id has a single best mask and no comparison."""
    kubelet = _on(_numbered(machine_of(2, 4), 0, 2), topologyManagerPolicyOptions=CLOSEST)
    assert kubelet.admit(pod_of("large", {"cpu": "7", "memory": "1Gi"})).placements["c0"].numa == (2,)
    assert kubelet.admit(pod_of("small", {"cpu": "2", "memory": "1Gi"})).placements["c0"].numa == (0,)


@pytest.mark.parametrize(
    ("ids", "rows", "policy", "options"),
    [
        pytest.param((0, 1), None, "restricted", CLOSEST, id="no gap"),
        pytest.param((0, 2), [[10, 0, 20], [20, 0, 10]], "restricted", CLOSEST, id="rows by id"),
        pytest.param((0, 2), None, "restricted", {}, id="no option"),
        pytest.param((0, 2), None, "single-numa-node", CLOSEST, id="policy that compares no distances"),
    ],
)
def test_distances_in_range_do_not_panic(
    ids: tuple[int, ...], rows: list[list[int]] | None, policy: str, options: dict[str, str]
) -> None:
    machine = _numbered(machine_of(4, 4), *ids, rows=rows)
    kubelet = _on(machine, policy, topologyManagerPolicyOptions=options)
    assert hazards(kubelet) == ()
    assert _judged(kubelet, pod_of("p", SMALL)) == (Outcome.FITS, "")
    assert kubelet.admit(pod_of("p", SMALL)).admitted


def test_the_kubelet_reads_distances_by_numa_id() -> None:
    """On NUMA ids 0, 2, 3 and 5, the third entry of a row is the distance to id 3; the kubelet uses it for id 2."""
    rows = [(10, 11, 20, 12), (11, 10, 40, 30), (20, 40, 10, 12), (12, 30, 12, 10)]
    nodes = [NumaNode(id=numa_id, memory=0, distances=row) for numa_id, row in zip((0, 2, 3, 5), rows, strict=True)]
    manager = TopologyManager(TopologySettings("best-effort", "container", prefer_closest=True), nodes)
    pairs = mask_of((0b0011, 0b0101))
    assert manager.decide([Hints(pairs, pairs)]) == (Hint(0b0101, True), True)
    assert manager.distances == tuple(rows)
    assert manager.unmeasured_ids == (5,)


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_a_page_size_missing_on_a_numa_node(policy: str) -> None:
    machine = machine_of(4, 4, hugepages=[{2048: 512}, {}])
    kubelet = kubelet_of(machine, topologyManagerPolicy=policy)
    assert hazards(kubelet) == ("page-sizes",)
    assert _judged(kubelet, pod_of("p", PAGES)) == (Outcome.UNRESOLVABLE, WOULD_PANIC)
    refused = kubelet.admit(pod_of("p", PAGES))
    assert (refused.admitted, refused.reason) == (False, WOULD_PANIC)
    assert "hugepages-2Mi on every NUMA node, and NUMA node 1 does not have it" in refused.message
    assert kubelet.admit(pod_of("without", SMALL)).admitted
    burstable = {"hugepages-2Mi": "2Mi", "memory": "1Gi"}
    assert kubelet.admit(pod_of("burstable", burstable)).admitted
    assert hazards(kubelet_of(machine_of(4, 4, hugepages=[{2048: 512}, {2048: 0}]), topologyManagerPolicy=policy)) == ()


def test_pages_of_init_containers_only_are_checked_on_the_hint() -> None:
    """With scope pod, the hint ignores the pages of init containers (getPodRequestedResources)."""
    fields = {"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"}
    for pages, admitted in (([{2048: 512}, {}], True), ([{}, {2048: 512}], False)):
        kubelet = kubelet_of(machine_of(4, 4, hugepages=pages), **fields)
        pod = pod_of("p", SMALL, init=[PAGES])
        assert _judged(kubelet, pod)[0] == (Outcome.FITS if admitted else Outcome.UNRESOLVABLE)
        assert kubelet.admit(pod).admitted == admitted


@pytest.mark.parametrize(
    ("policy", "manager", "limits", "admitted"),
    [
        ("best-effort", "None", {}, False),
        ("single-numa-node", "Static", SMALL, False),
        ("none", "Static", SMALL, False),
        ("none", "Static", {"memory": "1Gi"}, True),
        ("none", "None", SMALL, True),
    ],
)
def test_a_numa_id_beyond_the_masks(policy: str, manager: str, limits: dict[str, str], admitted: bool) -> None:
    """As on POWER9 machines, where NUMA ids of GPU memory start at 252."""
    reserved = {} if manager == "Static" else {"memoryManagerPolicy": "None", "reservedMemory": ()}
    kubelet = kubelet_of(_numbered(machine_of(4, 4), 0, 252), topologyManagerPolicy=policy, **reserved)
    pod = pod_of("p", limits)
    assert _judged(kubelet, pod) == ((Outcome.FITS, "") if admitted else (Outcome.UNRESOLVABLE, WOULD_PANIC))
    assert kubelet.admit(pod).admitted == admitted
    assert ("numa-ids" in hazards(kubelet)) == (policy != "none" or manager == "Static")


class _OutOfRange(Exception):  # noqa: N818 - a panic of the kubelet, not an error
    pass


def _upstream(groups: list[Hints], manager: TopologyManager, ids: list[int], rows: list[tuple[int, ...]]) -> bool:
    """Whether the merge as written in policy.go panics, tried permutation by permutation."""
    lists: list[list[tuple[int | None, bool]]] = [
        [
            (mask, bool(group.preferred >> mask & 1))
            for mask in sorted(members(group.fits), key=lambda mask: (mask.bit_count(), list(members(mask))))
        ]
        or [(None, False)]
        for group in groups
    ]
    aim = max((min(mask.bit_count() for mask in members(group.fits)) for group in groups if group.fits), default=0)

    def average(mask: int) -> float:
        total = 0
        for row in members(mask):
            for column in members(mask):
                if ids[column] >= len(rows[row]):
                    raise _OutOfRange
                total += rows[row][ids[column]]
        return total / mask.bit_count() ** 2

    def fitter(current: Hint, candidate: Hint) -> Hint:
        a, b = current.mask or 0, candidate.mask or 0
        if a == b:
            return current
        if a.bit_count() != b.bit_count():
            return current if a.bit_count() < b.bit_count() else candidate
        return current if (average(a), a) < (average(b), b) else candidate

    def better(current: Hint | None, candidate: Hint) -> Hint | None:
        if not candidate.mask or current is None:
            return candidate if candidate.mask else current
        if current.preferred != candidate.preferred:
            return current if current.preferred else candidate
        before, now = (current.mask or 0).bit_count(), candidate.mask.bit_count()
        if current.preferred or before > aim or (before == now):
            return fitter(current, candidate)
        return candidate if before < now <= aim else current

    best: Hint | None = None
    try:
        for permutation in itertools.product(*lists):
            masks = [mask for mask, _ in permutation if mask is not None]
            merged = manager.default
            for mask in masks:
                merged &= mask
            good = all(preferred for _, preferred in permutation) and len(set(masks)) <= 1
            best = better(best, Hint(merged, good))
    except _OutOfRange:
        return True
    return False


@st.composite
def _merges(draw: st.DrawFn) -> tuple[list[Hints], list[int], list[tuple[int, ...]]]:
    count = draw(st.integers(2, 4))
    ids = sorted(draw(st.sets(st.integers(0, count + 2), min_size=count, max_size=count)))
    full = (1 << (1 << count)) - 2
    # Few masks per resource, so that the best mask is not always a single NUMA node.
    masks = st.sets(st.integers(1, (1 << count) - 1), max_size=5).map(mask_of)
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        fits = draw(st.one_of(masks, st.integers(0, full).map(lambda bits: bits & full)))
        groups.append(Hints(fits, fits & draw(st.integers(0, full))))
    rows = [
        tuple(10 if row == column else draw(st.sampled_from((11, 20))) for column in range(count))
        for row in range(count)
    ]
    return groups, ids, rows


def _merge(ids: list[int], *groups: Hints) -> tuple[list[Hints], list[int], list[tuple[int, ...]]]:
    rows = [tuple(10 if row == column else 20 for column in range(len(ids))) for row in range(len(ids))]
    return [*groups], ids, rows


# A panic in one of the two orders only; masks wider than the narrowest; masks without a common NUMA node in between.
@example(_merge([0, 1, 3], Hints(mask_of((0b010, 0b011, 0b100)), 0), Hints(mask_of((0b011, 0b101)), 0)), 2)
@example(
    _merge(
        [0, 2, 4, 5],
        Hints(mask_of((0b0001, 0b1011, 0b1101)), mask_of((0b1011,))),
        Hints(mask_of((0b0100, 0b1010)), mask_of((0b0100,))),
    ),
    0,
)
@example(
    _merge(
        [0, 1, 2, 3, 4, 6],
        Hints(mask_of((0b000001, 0b110010)), 0),
        Hints(mask_of((0b000100, 0b001100, 0b010010, 0b110000)), 0),
    ),
    0,
)
# A best mask as wide as the narrowest that comes last; ids of which each is beyond the rows but the first.
@example(_merge([0, 3, 4], Hints(mask_of((0b011, 0b110)), 0), Hints(mask_of((0b001, 0b011)), 0)), 0)
@example(_merge([2, 3, 4], Hints(mask_of((0b011, 0b101)), 0)), 0)
@given(_merges(), st.integers(0, 3))
def test_a_merge_panics_where_the_cross_product_does(
    case: tuple[list[Hints], list[int], list[tuple[int, ...]]], unordered: int
) -> None:
    groups, ids, rows = case
    unordered = min(unordered, len(groups))
    nodes = [NumaNode(id=numa_id, memory=0, distances=row) for numa_id, row in zip(ids, rows, strict=True)]
    manager = TopologyManager(TopologySettings("restricted", "container", prefer_closest=True), nodes)
    expected = any(
        _upstream([*first, *groups[unordered:]], manager, ids, rows)
        for first in itertools.permutations(groups[:unordered])
    )
    try:
        manager.decide(groups, unordered=unordered)
        panicked = False
    except Refused as refused:
        assert refused.reason == WOULD_PANIC
        panicked = True
    assert panicked == expected


def test_a_merge_of_too_many_steps_counts_as_a_panic() -> None:
    """Eight NUMA nodes and three resources that share no mask: millions of permutations, and the walk ends early."""
    count = 8
    ids = [*range(7), 9]
    nodes = [NumaNode(id=numa_id, memory=0, distances=(10,) * count) for numa_id in ids]
    manager = TopologyManager(TopologySettings("best-effort", "container", prefer_closest=True), nodes)
    groups = [Hints(mask_of(mask for mask in range(1, 256) if mask >> node & 1), 0) for node in (0, 1, 2)]
    with pytest.raises(Refused, match="the kubelet would panic"):
        manager.decide(groups)
