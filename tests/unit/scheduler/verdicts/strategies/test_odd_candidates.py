"""Every strategy accepts pods without aligned resources, nodes without capacity, and unlike nodes together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.verdicts.engine import Candidates
from topowise_scheduler.verdicts.strategies import NAMES, Strategy, make, ranks, scale

from .conftest import Node, candidates_of, scores

EVERY = pytest.mark.parametrize("name", NAMES)


def strategy_of(name: str) -> Strategy:
    return make(name, {"cpu": 2}, Scoring())


@EVERY
def test_no_nodes_have_no_scores(name: str) -> None:
    candidates = candidates_of([{"cpu": 4}], containers=[{"cpu": 1}], masks=[[1]])
    empty = replace(
        candidates,
        rows=candidates.rows[:0],
        distances=candidates.distances[..., :0],
        allocatable={"cpu": candidates.allocatable["cpu"][:, :0]},
        available={"cpu": candidates.available["cpu"][:, :0]},
        placed=candidates.placed[:, :0],
        aligned=candidates.aligned[:, :0],
    )
    strategy = strategy_of(name)
    assert strategy.finish(strategy.raw(empty)).tolist() == []


@EVERY
@pytest.mark.parametrize("containers", [[], [{}], [{"cpu": 0}], [{"unknown": 3}]])
def test_a_pod_that_aligns_nothing_makes_no_difference(name: str, containers: list[dict[str, int]]) -> None:
    nodes: list[Node] = [[{"cpu": 4}], [{"cpu": 1}]]
    assert len(set(scores(name, candidates_of(*nodes, containers=containers, masks=[[0, 0]] * len(containers))))) == 1


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown scoring strategy 'Best', expected one of TightFit, "):
        make("Best", {}, Scoring())


amounts = st.sampled_from([0, 0, 1, 3, 8, 64])
zone = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu", "hugepages-1Gi"]), amounts)
pod = st.lists(
    st.dictionaries(st.sampled_from(["cpu", "memory", "gpu", "other"]), st.sampled_from([0, 1, 3, 9])), max_size=3
)


@st.composite
def candidates(draw: st.DrawFn) -> Candidates:
    """Random candidates: zones without CPUs or memory, requests above capacity, any masks."""
    zones, count = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    nodes = draw(st.lists(st.lists(zone, min_size=zones, max_size=zones), min_size=count, max_size=count))
    extra = draw(amounts)
    whole = [[{name: amount + extra for name, amount in free.items()} for free in node] for node in nodes]
    containers = draw(pod)
    masks = st.lists(st.integers(0, 2**zones - 1), min_size=count, max_size=count)
    kinds = draw(
        st.lists(st.sampled_from(["app", "init", "sidecar"]), min_size=len(containers), max_size=len(containers))
    )
    rows = draw(st.lists(masks, min_size=len(containers), max_size=len(containers)))
    flags = st.lists(st.booleans(), min_size=count, max_size=count)
    aligned = draw(st.lists(flags, min_size=len(containers), max_size=len(containers)))
    return candidates_of(
        *nodes,
        containers=containers,
        masks=rows,
        kinds=kinds,
        whole=whole,
        aligned=aligned,
        by_pod=draw(st.booleans()),
    )


def only(candidates: Candidates, node: int) -> Candidates:
    return replace(
        candidates,
        rows=candidates.rows[node : node + 1],
        distances=candidates.distances[..., node : node + 1],
        allocatable={name: table[:, node : node + 1] for name, table in candidates.allocatable.items()},
        available={name: table[:, node : node + 1] for name, table in candidates.available.items()},
        placed=candidates.placed[:, node : node + 1],
        aligned=candidates.aligned[:, node : node + 1],
    )


@pytest.mark.filterwarnings("error")
@settings(max_examples=examples(16), deadline=None)
@given(candidates=candidates())
def test_a_rank_depends_on_its_own_node_only(candidates: Candidates) -> None:
    node_ranks = ranks.of(candidates)
    assert node_ranks.dtype == np.int64
    assert node_ranks.tolist() == [ranks.of(only(candidates, node)).item() for node in range(len(candidates.rows))]


@EVERY
@pytest.mark.filterwarnings("error")
@settings(max_examples=examples(16), deadline=None)
@given(candidates=candidates())
def test_a_raw_score_depends_on_its_own_node_only_and_is_in_range(name: str, candidates: Candidates) -> None:
    strategy = strategy_of(name)
    before = {key: table.copy() for key, table in candidates.available.items()}
    raw = strategy.raw(candidates)
    finished = strategy.finish(raw)
    assert raw.dtype == finished.dtype == np.int64
    assert ((finished >= 0) & (finished <= scale.RAW_MAX)).all()
    assert raw.tolist() == [strategy.raw(only(candidates, node)).item() for node in range(len(candidates.rows))]
    assert all((candidates.available[key] == table).all() for key, table in before.items())
