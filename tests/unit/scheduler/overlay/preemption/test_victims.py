"""Victims are the proposed pods, plus the fewest and least important pods that suffice.

By default, a NUMA node has 4 CPUs, a thread per core. CPU 0 is reserved, so NUMA node 0 has 3 allocatable CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from topowise import pods
from topowise_scheduler.overlay.preemption import Choice, Running, choose

from .conftest import filled, node_of, pod_of, view_of


def _running(priorities: Mapping[str, int]) -> list[Running]:
    return [Running(uid, priority) for uid, priority in priorities.items()]


def test_victims_are_searched_on_the_same_numa_node() -> None:
    # kube-scheduler reprieves the oldest first: "two" and "three" of NUMA node 1, and evicts four pods of node 0.
    node = filled(node_of(5, 4), {"a": 1, "b": 1, "c": 1, "d": 1, "two": 2, "three": 2})
    running = [
        Running(uid, 0, f"2026-01-0{day}T00:00:00Z")
        for day, uid in enumerate(("two", "three", "a", "b", "c", "d"), start=1)
    ]
    assert choose(node, view_of(node, 4), 10, running, (), {}) == Choice(("two", "three"), 0)


@pytest.mark.parametrize("priority", [10, 9])
def test_only_less_important_pods_are_evicted(priority: int) -> None:
    node = filled(node_of(4, 4), {"a": 3, "b": 4})
    assert choose(node, view_of(node, 2), priority, _running({"a": 10, "b": 11}), (), {}) is None


def test_the_preemptor_is_no_victim_and_its_own_booking_does_not_count() -> None:
    node = filled(node_of(4, 4), {"a": 3, "preemptor": 4})
    view = view_of(node, 4)
    assert choose(node, view, 10, _running({"a": 0, "preemptor": 0}), {"preemptor"}, {}) == Choice((), 0)


def test_an_unknown_proposed_pod_stays_a_victim() -> None:
    node = filled(node_of(4, 4), {"a": 3, "b": 4})
    assert choose(node, view_of(node, 4), 10, _running({"a": 0, "b": 0}), {"x"}, {}) == Choice(("b", "x"), 0)


def test_a_budget_comes_before_a_priority() -> None:
    node = filled(node_of(5, 4), {"a": 4, "b": 4})
    running = [Running("a", 9), Running("b", 0, budgets=("default/pdb",))]
    assert choose(node, view_of(node, 4), 10, running, (), {"default/pdb": 0}) == Choice(("a",), 0)
    assert choose(node, view_of(node, 4), 10, running, (), {}) == Choice(("a",), 0)
    assert choose(node, view_of(node, 4), 10, running, (), {"default/pdb": 1}) == Choice(("b",), 0)


def test_budgets_are_used_up_by_the_most_important_pods_first() -> None:
    # As in kube-scheduler, the remaining eviction counts as the eviction of "b", evicted or not.
    node = filled(node_of(5, 4), {"a": 4, "b": 4})
    running = [Running("a", 1, budgets=("default/pdb",)), Running("b", 2, budgets=("default/pdb",))]
    assert choose(node, view_of(node, 4), 10, running, (), {"default/pdb": 1}) == Choice(("b",), 0)
    assert choose(node, view_of(node, 4), 10, running, {"a"}, {"default/pdb": 1}) == Choice(("a",), 1)
    assert choose(node, view_of(node, 4), 2, running, (), {"default/pdb": 1}) == Choice(("a",), 0)


def test_a_single_violation_is_better_than_two() -> None:
    node = filled(node_of(5, 4), {"a": 2, "b": 2, "c": 4})
    running = [Running(uid, priority, budgets=("default/pdb",)) for uid, priority in (("a", 0), ("b", 0), ("c", 9))]
    assert choose(node, view_of(node, 4), 10, running, (), {"default/pdb": 0}) == Choice(("c",), 1)


def test_several_less_important_pods_are_evicted_before_a_more_important_pod() -> None:
    node = filled(node_of(5, 4), {"a": 4, "b": 1, "c": 1, "d": 2})
    assert choose(node, view_of(node, 4), 10, _running({"a": 2, "b": 1, "c": 1, "d": 1}), (), {}) == Choice(
        ("b", "c", "d"), 0
    )


def test_the_pod_that_started_last_is_evicted() -> None:
    node = filled(node_of(5, 4, 4), {"a": 4, "b": 4, "c": 4})
    starts = {"a": "2026-01-02T00:00:00Z", "b": "2026-01-03T00:00:00Z", "c": "2026-01-01T00:00:00Z"}
    running = [Running(uid, 0, started) for uid, started in starts.items()]
    assert choose(node, view_of(node, 4), 10, running, (), {}) == Choice(("b",), 0)
    # A pod that has not started counts as starting now.
    running[0] = Running("a", 0)
    assert choose(node, view_of(node, 4), 10, running, (), {}) == Choice(("a",), 0)


def test_the_order_of_the_question_does_not_matter() -> None:
    node = filled(node_of(5, 4, 4), {"a": 4, "b": 4, "c": 4})
    running = _running({"a": 0, "b": 0, "c": 0})
    first = choose(node, view_of(node, 4), 10, running, (), {})
    assert first == choose(node, view_of(node, 4), 10, running[::-1], (), {})


def test_pods_without_exclusive_resources_are_evicted_if_the_sum_is_short() -> None:
    # Shared CPUs count as requests too: pods can request 7 CPUs in sum.
    shared = {"cpu": "3500m", "memory": "1Gi"}
    node = filled(node_of(4, 4), {"pinned": 2, "shared": shared})
    view = view_of(node, 4)
    assert node.fork().admit_view(view).reason == "OutOfcpu"
    assert choose(node, view, 10, _running({"pinned": 1, "shared": 2}), (), {}) == Choice(("shared",), 0)


def test_a_pod_without_requests_is_evicted_if_the_pod_count_is_exceeded() -> None:
    node = filled(node_of(4, 4, maxPods=2), {"pinned": 3, "idle": {}})
    assert choose(node, view_of(node, 4), 10, _running({"pinned": 1, "idle": 0}), (), {}) == Choice(("idle",), 0)


def test_keeping_a_pod_can_make_the_preemptor_fit() -> None:
    """On an empty node, the first container takes NUMA node 0, where the second container needs its GPU."""
    node = filled(node_of(6, 6, gpus=(1, 0)), {"blocker": 2, "filler": 5})
    view = view_of(node, 4, {"cpu": "3", "memory": "1Gi", "x.io/gpu": "1"})
    assert not node_of(6, 6, gpus=(1, 0)).admit_view(view).admitted
    assert choose(node, view, 10, _running({"blocker": 0, "filler": 0}), (), {}) == Choice(("filler",), 0)


def test_the_node_is_not_changed() -> None:
    node = filled(node_of(4, 4), {"a": 3, "b": 2, "c": 2})
    before = {uid: node.placements(uid) for uid in node.active}
    assert choose(node, view_of(node, 4), 10, _running({"a": 0, "b": 0, "c": 0}), {"a"}, {}) is not None
    assert {uid: node.placements(uid) for uid in node.active} == before


def test_pods_that_are_booked_as_reported_can_be_victims() -> None:
    seen = node_of(4, 4)
    node = node_of(4, 4)
    for uid, cpus in (("a", 3), ("b", 4)):
        needs = pods.needs(pod_of(uid, cpus))
        node.hold(uid, needs.requests, seen.admit_view(seen.view(uid, needs)).placements)
    assert choose(node, view_of(node, 4), 10, _running({"a": 0, "b": 1}), (), {}) == Choice(("b",), 0)
