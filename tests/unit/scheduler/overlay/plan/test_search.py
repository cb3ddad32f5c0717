"""The smallest change."""

from __future__ import annotations

from topowise_scheduler.overlay import plan
from topowise_scheduler.overlay.plan import TODAY, Arrival, Change, Scenario
from topowise_scheduler.overlay.plan.search import merged

from .conftest import Site, workload

RESTRICTED, ADDED = Change("restricted", policy="restricted"), Change("one more", add={"n1": 1})


def test_no_change_is_the_smallest(site: Site) -> None:
    found = plan.smallest(Scenario(site(), (workload("small"),)), [RESTRICTED])
    assert found.result is not None and found.result.change == TODAY and found.tries == 1


def test_a_combination_is_found(site: Site) -> None:
    scenario = Scenario(site(1), (workload("wide", 2, gpus=4, cpus=40),))
    found = plan.smallest(scenario, [ADDED, RESTRICTED])
    assert found.result is not None and found.is_least
    assert found.result.change.name == "one more + restricted" and found.tries == 4


def test_the_search_is_bounded(site: Site) -> None:
    scenario = Scenario(site(1), (workload("wide", 9, gpus=4, cpus=40),))
    allowed = [Change(f"add {count}", add={"n1": count}) for count in range(1, 9)]
    found = plan.smallest(scenario, allowed, most_tries=3)
    assert (found.result, found.tries, found.is_least) == (None, 3, False)
    assert plan.smallest(scenario, [ADDED]).is_least


def test_fewer_nodes_come_first_and_waits_count(site: Site) -> None:
    job = workload("job", 1, cpus=30)
    trace = tuple(Arrival(0.0, job, 60.0) for _ in range(5))
    allowed = [Change(f"add {count}", add={"n1": count}) for count in (3, 2, 1)]
    found = plan.smallest(Scenario(site(1), trace=trace), allowed, longest_wait=0.0)
    assert found.result is not None and found.result.change.name == "add 2"


def test_contradictions_are_not_combined() -> None:
    assert merged([RESTRICTED, Change("pod", policy="best-effort")]) is None
    assert merged([ADDED, Change("two more", add={"n1": 2})]) is None
    assert merged([ADDED, Change("other", add={"n2": 2})]) == Change("one more + other", add={"n1": 1, "n2": 2})
