"""What a session of Volcano books, and gives back."""

from __future__ import annotations

import pytest

from scheduling import Service, counts, pod
from topowise_scheduler.serve.volcano.allocations import LEAVING_S, Allocations
from topowise_scheduler.verdicts import refusals
from volcano import PIPELINED, RELEASING, Volcano


@pytest.fixture
def service() -> Service:
    made = Service()
    for name in ("n1", "n2"):
        made.report(counts(name, ("8", "8"), included=()))
    return made


@pytest.fixture
def volcano(service: Service) -> Volcano:
    return Volcano(service)


def crowded(service: Service) -> None:
    """On each NUMA node of n1 a pod of eight CPUs."""
    service.report(counts("n1", ("0", "0"), included=("old-a", "old-b"), placed={"old-a": 0, "old-b": 1}, version="2"))
    for name in ("old-a", "old-b"):
        service.put(pod(name, "8", node="n1", phase="Running", startTime="2026-08-21T09:00:00Z"))


def test_an_allocation_that_is_refused_is_no_bind_that_failed(volcano: Volcano, service: Service) -> None:
    assert volcano.allocate(pod("nine", "9"), "n1") != ""
    assert service.ledger.events["bind_conflict"] == 0
    record = service.put(pod("other-nine", "9"))
    assert record.needs is not None
    assert service.ledger.reservations.assume(record, record.needs, "n1") != ""
    assert service.ledger.events["bind_conflict"] == 1


def test_pods_of_a_session_must_fit_in_every_order_in_which_they_may_be_bound(volcano: Volcano) -> None:
    """Volcano binds side by side. Three, four and four CPUs first, and there are no five left on one NUMA node."""
    for name, cpus in (("five", "5"), ("four", "4"), ("other-four", "4")):
        assert volcano.allocate(pod(name, cpus), "n1") == ""
    three = pod("three", "3")
    # Nobody is to be evicted for what the next session finds settled.
    assert volcano.predicate(three, "n1") == (1, refusals.NOT_NOW)
    assert "in another order" in volcano.allocate(three, "n1")
    assert volcano.fits(three, "n2")
    assert volcano.deallocate(pod("five", "5"), "n1") == ""
    assert volcano.fits(three, "n1")
    assert volcano.allocate(three, "n1") == ""


def test_allocations_outlive_questions_about_other_tasks_and_the_same(volcano: Volcano, service: Service) -> None:
    first, second = pod("a", "8"), pod("b", "8")
    assert volcano.allocate(first, "n1") == ""
    for one in (first, second):
        volcano.fits(one, "n1")
        volcano.scores(one, "n1", "n2")
    assert volcano.allocate(second, "n1") == ""
    assert service.free("n1") == [0, 0]


def test_a_pod_is_not_in_its_own_way(volcano: Volcano) -> None:
    one = pod("a", "8")
    assert volcano.allocate(one, "n1") == ""
    assert volcano.allocate(pod("b", "8"), "n1") == ""
    assert volcano.fits(one, "n1")
    assert volcano.allocate(one, "n1") == ""


def test_a_pod_allocated_elsewhere_is_booked_there_alone(volcano: Volcano, service: Service) -> None:
    assert volcano.allocate(pod("a", "8"), "n1") == ""
    assert volcano.allocate(pod("a", "8"), "n2") == ""
    assert (service.free("n1"), sum(service.free("n2"))) == ([8, 8], 8)


def test_it_is_told_too_if_it_depends_on_where_newer_pods_lie(volcano: Volcano, service: Service) -> None:
    assert volcano.allocate(pod("a", "5"), "n1") == ""
    assert volcano.allocate(pod("b", "3"), "n1") == ""
    # Eight are free together only if a and b lie on one NUMA node, which their order decides.
    assert volcano.allocate(pod("c", "8"), "n1") != ""


def test_what_nobody_binds_ends_by_itself(volcano: Volcano, service: Service) -> None:
    assert volcano.allocate(pod("a", "8"), "n1") == ""
    service.clock.now += 31
    service.ledger.tick()
    assert service.free("n1") == [8, 8]


def test_a_bind_takes_the_place_of_the_allocation(volcano: Volcano, service: Service) -> None:
    assert volcano.allocate(pod("a", "8"), "n1") == ""
    service.put(pod("a", "8", node="n1"))
    assert (len(service.ledger.reservations), sorted(service.free("n1"))) == (0, [0, 8])
    assert volcano.allocate(pod("a", "8"), "n1") == ""
    assert volcano.allocate(pod("a", "8"), "n2") == ("kubelet of n2 would refuse the pod: it is bound to n1 already")
    assert volcano.deallocate(pod("a", "8"), "n1") == ""
    assert sorted(service.free("n1")) == [0, 8]


def test_a_node_that_nobody_has_reported_takes_everything(volcano: Volcano, service: Service) -> None:
    assert volcano.allocate(pod("a", "64"), "unknown-node") == ""
    assert len(service.ledger.reservations) == 0


def test_an_evicted_pod_makes_room_for_a_pipelined_one_alone(volcano: Volcano, service: Service) -> None:
    crowded(service)
    old, new = pod("old-a", "8"), pod("new", "8")
    assert not volcano.fits(new, "n1")
    assert volcano.deallocate(old, "n1", RELEASING) == ""
    assert volcano.fits(new, "n1")
    # It still runs, so nothing can be bound there now.
    assert volcano.allocate(new, "n1") != ""
    assert volcano.allocate(new, "n1", PIPELINED) == ""
    assert not volcano.fits(pod("late", "8"), "n1")
    assert service.fits(pod("of-kube-scheduler", "1"), "n1") == []
    service.ledger.drop_pod("uid-old-a")
    service.report(counts("n1", ("8", "0"), included=("old-b",), placed={"old-b": 1}, version="3"))
    assert service.free("n1") == [0, 0]
    assert volcano.allocate(new, "n1") == ""


def test_free_room_that_a_pipelined_pod_counts_on_is_not_given_away(volcano: Volcano, service: Service) -> None:
    service.report(counts("n1", ("2", "0"), included=("old-a", "old-b"), placed={"old-a": 0, "old-b": 1}, version="2"))
    for name, cpu in (("old-a", "6"), ("old-b", "8")):
        service.put(pod(name, cpu, node="n1", phase="Running", startTime="2026-08-21T09:00:00Z"))
    volcano.deallocate(pod("old-a", "6"), "n1", RELEASING)
    assert volcano.fits(pod("small", "1"), "n1")
    assert volcano.allocate(pod("new", "8"), "n1", PIPELINED) == ""
    assert volcano.predicate(pod("small", "1"), "n1") == (2, refusals.NOT_NOW)
    assert "n1 reserves its free resources for a pipelined pod" in volcano.allocate(pod("small", "1"), "n1")


def test_an_evicted_pod_is_left_out_of_account_in_later_sessions_so_that_no_other_is_evicted(
    volcano: Volcano, service: Service
) -> None:
    crowded(service)
    volcano.deallocate(pod("old-a", "8"), "n1", RELEASING)
    volcano.allocate(pod("new", "8"), "n1", PIPELINED)
    volcano.ask("onSessionClose", {})
    service.clock.now += 60
    service.ledger.tick()
    assert volcano.fits(pod("new", "8"), "n1")
    service.clock.now += LEAVING_S
    assert not volcano.fits(pod("new", "8"), "n1")


def test_two_evictions_make_room_for_two(volcano: Volcano, service: Service) -> None:
    crowded(service)
    for name in ("old-a", "old-b"):
        volcano.deallocate(pod(name, "8"), "n1", RELEASING)
    assert volcano.allocate(pod("new-a", "8"), "n1", PIPELINED) == ""
    assert volcano.fits(pod("new-b", "8"), "n1")
    assert volcano.allocate(pod("new-b", "8"), "n1", PIPELINED) == ""
    assert volcano.allocate(pod("new-c", "1"), "n1", PIPELINED) != ""
    assert volcano.deallocate(pod("new-a", "8"), "n1") == ""
    assert volcano.fits(pod("new-c", "8"), "n1")


def test_evictions_of_pods_that_are_not_there_are_not_kept(service: Service) -> None:
    allocations = Allocations(service.ledger, service.clock)
    service.put(pod("old", "8", node="n1"))
    for uid in ("uid-old", *(f"made-up-{number}" for number in range(100))):
        allocations.evict(uid, "n1")
        allocations.evict(uid, "nowhere")
    allocations.evict("uid-old", "n1")
    assert len(allocations._leaving) == 1
    assert allocations.leaving("n1") == {"uid-old"}
