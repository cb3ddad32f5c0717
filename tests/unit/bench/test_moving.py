"""Pods that are moved for large ones: the kubelets take every one of them where the plan said."""

from __future__ import annotations

from functools import partial

from bench.density import machines, schedulers, steady
from bench.density.cluster import Cluster
from bench.density.mix import Hardware, Shape
from bench.density.moving import SHARE, Planner
from bench.results import Steady

SERVER = Hardware(cores=16, memory="128Gi", devices={"example.com/gpu": 4}, pages=0)
SHAPES = (
    Shape(12, ({"cpu": "2", "memory": "2Gi", "example.com/gpu": "1"},)),
    Shape(2, ({"cpu": "12", "memory": "8Gi", "example.com/gpu": "2"},)),
)


def kept_busy(nodes: int, *, moving: bool) -> Steady:
    setting = ("single-numa-node", "container")
    empty = machines.kubelet(SERVER, 2, *setting)
    planner = partial(Planner, machines.machine(SERVER, 2), machines.configuration(SERVER, 2, *setting), SHAPES)
    needs, counts = [one.needs() for one in SHAPES], [one.count for one in SHAPES]
    scheduler = schedulers.make(schedulers.MOVING)
    bound = 4 * nodes
    return steady.keep_busy(
        Cluster(empty, nodes), scheduler, needs, counts, 3, bound, "example.com/gpu", planner if moving else None
    )


def test_few_pods_are_moved_and_more_large_ones_are_placed_at_once() -> None:
    still, moved = kept_busy(8, moving=False), kept_busy(8, moving=True)
    assert (still.moved, moved.refused) == (0, 0)
    assert 0 < moved.moved <= SHARE
    assert moved.large_at_once >= still.large_at_once
    assert moved.large_wait <= still.large_wait


def test_a_plan_moves_who_is_in_the_way() -> None:
    """A pod of one GPU on each NUMA node of one machine; the other machine has room for one of them."""
    setting = ("single-numa-node", "container")
    cluster = Cluster(machines.kubelet(SERVER, 2, *setting), 2)
    planner = Planner(
        machines.machine(SERVER, 2), machines.configuration(SERVER, 2, *setting), SHAPES, cluster.kubelets
    )
    small, large = (one.needs() for one in SHAPES)
    there = [("big", large, 1, 1), ("d", small, 0, 1), *((name, small, 0, 0) for name in "abc")]
    for uid, needs, shape, node in there:
        assert cluster.send(needs, node, uid).admitted
        planner.put(uid, shape, node)
    cluster.remove("a")
    planner.drop("a")
    moves = planner.moves(1, 3)
    assert [(uid, shape) for uid, shape, _ in moves] in ([("b", 0)], [("c", 0)])
    assert [node for *_, node in moves] == [1]
    assert planner.moves(1, 0) == []
