"""TightFit: which of two nodes is better, level by level."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise_scheduler.configuration import Scoring
from topowise_scheduler.verdicts.engine import Candidates
from topowise_scheduler.verdicts.strategies import make

from .conftest import Node, candidates_of, scores

GI = 1 << 30
BOTH = pytest.mark.parametrize("tie_break", ["spread", "pack"])


def raw(candidates: Candidates, tie_break: str = "pack") -> list[int]:
    return make("TightFit", {}, Scoring(tie_break=tie_break)).raw(candidates).tolist()  # type: ignore[arg-type]


def test_an_exact_fit_is_best_and_the_raw_scores_are_used() -> None:
    nodes: list[Node] = [[{"cpu": 4}], [{"cpu": 512}]]
    exact, loose = raw(
        candidates_of(*nodes, containers=[{"cpu": 4}], masks=[[1, 1]], whole=[[{"cpu": 8}], [{"cpu": 512}]])
    )
    assert exact == (311 * 4 + 3) * 8 == 9976
    assert loose == ((311 - 225) * 4 + 0) * 8


@given(st.data(), st.integers(2, 512), st.sampled_from(["spread", "pack"]))
def test_a_small_pod_prefers_a_partly_used_zone_to_an_empty_zone(data: st.DataObject, whole: int, tie: str) -> None:
    free = data.draw(st.integers(1, whole - 1))
    amount = data.draw(st.integers(1, free))
    full: Node = [{"cpu": whole, "memory": whole * GI}] * 2
    broken: Node = [{"cpu": free, "memory": free * GI}, {"cpu": whole, "memory": whole * GI}]
    pod = {"cpu": amount, "memory": amount * GI}
    better, worse = raw(candidates_of(broken, full, containers=[pod], masks=[[1, 1]], whole=[full, full]), tie)
    assert better > worse


@given(st.data(), st.integers(1, 64), st.sampled_from(["spread", "pack"]))
def test_the_smaller_hole_wins_at_any_amounts_of_other_zones(data: st.DataObject, amount: int, tie: str) -> None:
    small = data.draw(st.integers(amount, 4 * amount))
    large = data.draw(st.integers(-(-small * 104 // 100), 8 * amount))
    other_zones = data.draw(st.lists(st.integers(0, 64), min_size=2, max_size=2))
    nodes: list[Node] = [[{"cpu": small}, {"cpu": other_zones[0]}], [{"cpu": large}, {"cpu": other_zones[1]}]]
    whole: list[Node] = [[{"cpu": 1000}, {"cpu": 64}]] * 2
    better, worse = raw(candidates_of(*nodes, containers=[{"cpu": amount}], masks=[[1, 1]], whole=whole), tie)
    assert better > worse


@BOTH
def test_the_hole_counts_and_not_the_size_of_its_zone(tie_break: str) -> None:
    # 20 free CPUs of 64 fit a larger pod than 8 of 16.
    nodes: list[Node] = [[{"cpu": 8}], [{"cpu": 20}]]
    candidates = candidates_of(*nodes, containers=[{"cpu": 4}], masks=[[1, 1]], whole=[[{"cpu": 16}], [{"cpu": 64}]])
    better, worse = raw(candidates, tie_break)
    assert better > worse


def test_the_fuller_node_wins_to_pack_and_the_emptier_to_spread() -> None:
    nodes: list[Node] = [[{"cpu": 8}, {"cpu": 1}], [{"cpu": 8}, {"cpu": 16}]]
    candidates = candidates_of(*nodes, containers=[{"cpu": 4}], masks=[[1, 1]], whole=[[{"cpu": 16}] * 2] * 2)
    full, empty = raw(candidates, "pack")
    assert full > empty
    full, empty = raw(candidates, "spread")
    assert full < empty


def test_a_tighter_hole_beats_a_fuller_node() -> None:
    tight: Node = [{"cpu": 8}, {"cpu": 90}]
    loose: Node = [{"cpu": 64}, {"cpu": 0}]
    better, worse = raw(candidates_of(tight, loose, containers=[{"cpu": 8}], masks=[[1, 1]]))
    assert better > worse


def test_fragments_of_several_zones_do_not_pass_for_a_small_hole() -> None:
    # Twice 12 free CPUs are less than 32, but no single-zone pod fits either zone while this pod runs.
    nodes: list[Node] = [[{"cpu": 12}, {"cpu": 12}], [{"cpu": 32}, {"cpu": 32}]]
    spanning, single = raw(
        candidates_of(*nodes, containers=[{"cpu": 16}], masks=[[3, 1]], whole=[[{"cpu": 32}] * 2] * 2)
    )
    assert single > spanning


@BOTH
def test_a_pod_without_devices_avoids_cpus_near_devices(tie_break: str) -> None:
    whole: list[Node] = [[{"cpu": 16, "gpu": 2}], [{"cpu": 16, "gpu": 2}], [{"cpu": 16}]]
    nodes: list[Node] = [[{"cpu": 8, "gpu": 2}], [{"cpu": 8, "gpu": 0}], [{"cpu": 8}]]
    idle, taken, without = raw(
        candidates_of(*nodes, containers=[{"cpu": 4}], masks=[[1, 1, 1]], whole=whole), tie_break
    )
    assert idle < taken == without
    wanting = candidates_of(*nodes[:2], containers=[{"cpu": 4, "gpu": 1}], masks=[[1, 1]], whole=whole[:2])
    assert raw(wanting, tie_break)[0] > idle


def test_devices_beside_a_full_zone_are_lost_already() -> None:
    # Losing the 2 CPUs near both GPUs costs less than breaking a hole twice as large.
    nodes: list[Node] = [[{"cpu": 2, "gpu": 2}], [{"cpu": 4}]]
    whole: list[Node] = [[{"cpu": 32, "gpu": 2}], [{"cpu": 32}]]
    better, worse = raw(candidates_of(*nodes, containers=[{"cpu": 2}], masks=[[1, 1]], whole=whole))
    assert better > worse


def test_containers_in_the_same_zone_break_a_single_hole() -> None:
    nodes: list[Node] = [[{"cpu": 8}, {"cpu": 0}], [{"cpu": 8}, {"cpu": 8}]]
    whole: list[Node] = [[{"cpu": 16}] * 2] * 2
    same_zone, two_zones = raw(candidates_of(*nodes, containers=[{"cpu": 4}] * 2, masks=[[1, 1], [1, 2]], whole=whole))
    assert same_zone // 32 == 311
    assert two_zones // 32 == 311 - 30


def test_the_second_container_scores_the_hole_after_the_first_container() -> None:
    containers = [{"cpu": 4}, {"cpu": 2}, {"cpu": 4}]
    candidates = candidates_of(
        [{"cpu": 8}, {"cpu": 2}], containers=containers, masks=[[1], [2], [1]], whole=[[{"cpu": 16}] * 2]
    )
    assert raw(candidates)[0] // 32 == 311 - 10


def test_plain_init_containers_do_not_count() -> None:
    node: Node = [{"cpu": 16}, {"cpu": 8}]
    alone = raw(candidates_of(node, containers=[{"cpu": 4}], masks=[[2]]))
    assert (
        raw(candidates_of(node, containers=[{"cpu": 9}, {"cpu": 4}], kinds=["init", "app"], masks=[[1], [2]])) == alone
    )
    assert raw(candidates_of(node, containers=[{"cpu": 9}], kinds=["init"], masks=[[1]])) == [0]


def test_resources_that_a_node_lacks_do_not_count() -> None:
    nodes: list[Node] = [[{"cpu": 8}], [{"cpu": 8, "gpu": 2}]]
    whole: list[Node] = [[{"cpu": 16}], [{"cpu": 16, "gpu": 4}]]
    without, with_gpus = raw(candidates_of(*nodes, containers=[{"cpu": 4, "gpu": 1}], masks=[[1, 1]], whole=whole))
    assert without == with_gpus


def test_weights_decide_which_holes_matter() -> None:
    nodes: list[Node] = [[{"cpu": 4, "memory": 64}], [{"cpu": 16, "memory": 8}]]
    candidates = candidates_of(
        *nodes, containers=[{"cpu": 4, "memory": 8}], masks=[[1, 1]], whole=[[{"cpu": 64, "memory": 64}]] * 2
    )
    cpus_first = scores("TightFit", candidates, {"cpu": 5})
    assert cpus_first[0] > cpus_first[1]
    memory_first = scores("TightFit", candidates, {"memory": 5})
    assert memory_first[0] < memory_first[1]
