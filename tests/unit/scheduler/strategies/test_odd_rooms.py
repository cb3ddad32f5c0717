"""What every strategy must bear: nothing to align, nothing to give, and neighbours that have nothing in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topowise_scheduler.configuration import Scoring
from topowise_scheduler.engine.room import Room
from topowise_scheduler.strategies import NAMES, Strategy, make, scale

from .conftest import Node, RoomOf, Scores, _room

EVERY = pytest.mark.parametrize("name", NAMES)


def strategy_of(name: str) -> Strategy:
    return make(name, {"cpu": 2}, Scoring())


@EVERY
def test_no_nodes_have_no_scores(room_of: RoomOf, name: str) -> None:
    room = room_of([{"cpu": 4}], steps=[{"cpu": 1}], masks=[[1]])
    nobody = replace(
        room,
        rows=room.rows[:0],
        distances=room.distances[..., :0],
        allocatable={"cpu": room.allocatable["cpu"][:, :0]},
        available={"cpu": room.available["cpu"][:, :0]},
        masks=room.masks[:, :0],
    )
    strategy = strategy_of(name)
    assert strategy.finish(strategy.raw(nobody)).tolist() == []


@EVERY
@pytest.mark.parametrize("steps", [[], [{}], [{"cpu": 0}], [{"unknown": 3}]])
def test_a_pod_that_aligns_nothing_makes_no_difference(
    room_of: RoomOf, scores: Scores, name: str, steps: list[dict[str, int]]
) -> None:
    nodes: list[Node] = [[{"cpu": 4}], [{"cpu": 1}]]
    assert len(set(scores(name, room_of(*nodes, steps=steps, masks=[[0, 0]] * len(steps))))) == 1


@EVERY
def test_an_aligned_node_is_better_than_one_that_promises_nothing(room_of: RoomOf, scores: Scores, name: str) -> None:
    node: Node = [{"cpu": 4, "memory": 8}, {"cpu": 4, "memory": 8}]
    # Nobody knows where the pod will lie on the second node; LeastNUMANodes counts what it would need.
    room = room_of(node, node, steps=[{"cpu": 2, "memory": 3}], masks=[[1, 0]])
    aligned, unpromised = scores(name, room)
    assert aligned >= unpromised if name == "LeastNUMANodes" else aligned > unpromised


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown scoring strategy 'Best', expected one of TightFit, "):
        make("Best", {}, Scoring())


amounts = st.sampled_from([0, 0, 1, 3, 8, 64])
zone = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu", "hugepages-1Gi"]), amounts)
pod = st.lists(
    st.dictionaries(st.sampled_from(["cpu", "memory", "gpu", "other"]), st.sampled_from([0, 1, 3, 9])), max_size=3
)


@st.composite
def rooms(draw: st.DrawFn) -> Room:
    """Anything: zones without CPUs or memory, more asked for than there is, any masks."""
    zones, count = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    nodes = draw(st.lists(st.lists(zone, min_size=zones, max_size=zones), min_size=count, max_size=count))
    extra = draw(amounts)
    whole = [[{name: amount + extra for name, amount in one.items()} for one in node] for node in nodes]
    steps = draw(pod)
    masks = st.lists(st.integers(0, 2**zones - 1), min_size=count, max_size=count)
    kinds = draw(st.lists(st.sampled_from(["app", "init", "sidecar"]), min_size=len(steps), max_size=len(steps)))
    rows = draw(st.lists(masks, min_size=len(steps), max_size=len(steps)))
    return _room(*nodes, steps=steps, masks=rows, kinds=kinds, whole=whole)


def only(room: Room, node: int) -> Room:
    return replace(
        room,
        rows=room.rows[node : node + 1],
        distances=room.distances[..., node : node + 1],
        allocatable={name: table[:, node : node + 1] for name, table in room.allocatable.items()},
        available={name: table[:, node : node + 1] for name, table in room.available.items()},
        masks=room.masks[:, node : node + 1],
    )


@EVERY
@pytest.mark.filterwarnings("error")
@settings(max_examples=150, deadline=None)
@given(room=rooms())
def test_a_node_scores_for_itself_and_in_range(name: str, room: Room) -> None:
    strategy = strategy_of(name)
    before = {key: table.copy() for key, table in room.available.items()}
    raw = strategy.raw(room)
    finished = strategy.finish(raw)
    assert raw.dtype == finished.dtype == np.int64
    assert ((finished >= 0) & (finished <= scale.RAW_MAX)).all()
    assert raw.tolist() == [strategy.raw(only(room, node)).item() for node in range(len(room.rows))]
    assert all((room.available[key] == table).all() for key, table in before.items())
