"""A nomination that no longer holds is moved or withdrawn, once; room is never booked for nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nominating import TRIED, Nominating
from scheduling import counts, pod
from topowise_scheduler.ledger.pods.records import NOMINATED_ANNOTATION

CORDONED = {"unschedulable": True}


def one(*free: str, **fields: Any) -> Nominating:
    """The pod "a" is nominated for n1, and that is written."""
    made = Nominating(*free)
    made.put("a", **fields)
    assert made.write() == ("a", "n1")
    assert made.next() is None
    return made


class TestMoved:
    @pytest.mark.parametrize(
        "change",
        [
            lambda made: made.node("n1", CORDONED),
            lambda made: made.node("n1", {"taints": [{"key": "a", "effect": "NoExecute"}]}),
            lambda made: made.node("n1", {}, ready="False"),
            lambda made: made.node("n1", {}, allocatable={"cpu": "8", "memory": "512Mi", "pods": "110"}),
            lambda made: made.service.report(counts("n1", "1", included=(), version="2")),
            lambda made: made.service.refuse(pod("b", "2"), "n1"),
        ],
        ids=[
            "cordoned",
            "tainted",
            "not ready",
            "less allocatable",
            "reports less",
            "its kubelet has refused such a pod",
        ],
    )
    def test_at_once_when_the_pod_does_not_fit_the_node(self, change: Callable[[Nominating], None]) -> None:
        made = one("4", "8")
        change(made)
        assert made.write() == ("a", "n2")
        assert made.nominated() == {"a": "n2"}
        assert made.next() is None

    def test_when_a_pod_of_a_higher_priority_takes_the_room(self) -> None:
        made = one("4", "8", cpu="3")
        high = made.put("high", "4", priority=9, schedulerName="other")
        assert high.needs is not None
        assert made.service.fits(pod("high", "4", priority=9), "n1") == ["n1"]
        assert made.ledger.reservations.assume(high, high.needs, "n1") is None
        assert made.write() == ("a", "n2")

    def test_a_pod_of_a_higher_priority_is_nominated_as_if_it_were_not_there(self) -> None:
        made = one("8", cpu="6")
        made.put("high", "6", priority=9)
        assert made.write() == ("high", "n1")
        # There is no other node for it.
        assert made.write() == ("a", "")
        assert made.nominated() == {"high": "n1"}

    def test_never_back_and_forth(self) -> None:
        made = one("4", "5", "6")
        made.node("n1", CORDONED)
        assert made.write() == ("a", "n2")
        made.node("n1")
        made.node("n2", CORDONED)
        assert made.write() == ("a", "n1")
        made.node("n2")
        made.node("n1", CORDONED)
        assert made.write() == ("a", "")
        assert made.nominated() == {}
        # It is kube-scheduler's from now on.
        made.node("n1")
        made.put("a", labels={"x": "y"})
        assert made.next() is None

    def test_not_while_it_is_on_its_way(self) -> None:
        made = one("4", "8")
        record = made.event("a")
        assert record.needs is not None
        made.ledger.reservations.put(record, record.needs, "n1")
        made.node("n1", CORDONED)
        assert made.next() is None

    def test_not_before_it_is_written(self) -> None:
        """The version to be named in the write is not known yet."""
        made = Nominating("4", "8")
        made.put("a")
        write = made.decisions.next()
        assert write is not None
        made.node("n1", CORDONED)
        assert made.next() is None
        assert made.apply(write)
        assert made.write() == ("a", "n2")

    def test_a_heartbeat_of_the_node_is_no_reason(self) -> None:
        made = one("4", "8")
        changes = made.service.nodes.changes
        made.node("n1")
        assert made.service.nodes.changes == changes


class TestOthers:
    def test_a_nomination_of_kube_scheduler_stays_whatever_happens(self) -> None:
        made = Nominating("4", "8")
        made.put("a", nominatedNodeName="n1", conditions=TRIED)
        made.node("n1", CORDONED)
        made.clock.now += 100
        assert made.write_all() == {}
        assert made.nominated() == {"a": "n1"}

    def test_one_that_takes_the_place_of_ours_is_not_touched(self) -> None:
        made = one("4", "8")
        made.put("a", nominatedNodeName="n2", conditions=TRIED)
        assert made.nominated() == {"a": "n2"}
        made.node("n2", CORDONED)
        made.clock.now += 100
        assert made.write_all() == {}

    def test_who_preempts_on_the_node_we_named_keeps_it_while_the_victims_leave(self) -> None:
        made = Nominating("8", "8")
        made.put("low", "6", node="n1", schedulerName="other")
        made.put("a", priority=9)
        assert made.write() == ("a", "n1")
        made.put("a", conditions=TRIED)
        made.put("low", deletionTimestamp="2026-01-01T00:00:00Z")
        for _ in range(60):
            made.clock.now += 1
            assert made.next() is None

    def test_one_that_another_process_of_ours_wrote_is_taken_over(self) -> None:
        made = Nominating("4", "8")
        made.put("a", nominatedNodeName="n1", annotations={NOMINATED_ANNOTATION: "n1"})
        assert made.nominated() == {"a": "n1"}
        assert made.next() is None
        made.node("n1", CORDONED)
        assert made.write() == ("a", "n2")

    def test_one_that_was_written_for_a_node_that_is_no_good_now_is_moved_at_once(self) -> None:
        made = Nominating("1", "8")
        made.put("a", nominatedNodeName="n1", annotations={NOMINATED_ANNOTATION: "n1"})
        assert made.write() == ("a", "n2")


class TestEnds:
    @pytest.mark.parametrize("node", ["n1", "n2"])
    def test_with_the_bind(self, node: str) -> None:
        made = one("8", "8")
        made.bind("a", node)
        assert made.nominated() == {}
        assert not len(made.ledger.nominations)
        outcome = "honoured" if node == "n1" else "elsewhere"
        assert made.ledger.events[f"nomination_{outcome}"] == 1

    def test_with_the_pod(self) -> None:
        made = one("8")
        made.delete("a")
        assert made.nominated() == {}
        assert made.service.free("n1") == [8]
        assert made.next() is None

    def test_when_kube_scheduler_clears_it(self) -> None:
        made = one("8")
        made.put("a", nominatedNodeName="", conditions=TRIED)
        assert made.nominated() == {}
        assert made.next() is None

    def test_when_kube_scheduler_has_tried_the_pod_in_vain_and_left_it_standing(self) -> None:
        made = one("8")
        made.put("a", conditions=TRIED)
        assert made.next() is None
        made.clock.now += 16
        assert made.write() == ("a", "")
        assert made.nominated() == {}

    def test_at_once_if_such_a_pod_evicts_nobody(self) -> None:
        made = one("8", preemptionPolicy="Never")
        made.put("a", conditions=TRIED)
        made.clock.now += 1
        assert made.write() == ("a", "")

    def test_all_of_them_when_kube_scheduler_does_not_come_at_all(self) -> None:
        made = Nominating("8")
        for name in "abc":
            made.put(name)
        assert made.write_all() == dict.fromkeys("abc", "n1")
        made.clock.now += 61
        assert made.write_all() == dict.fromkeys("abc", "")
        assert made.service.free("n1") == [8]
        # And it goes on when kube-scheduler does.
        made.bind("a", "n1")
        assert made.write_all() == {"b": "n1", "c": "n1"}

    def test_without_a_report_there_is_nothing_to_hold(self) -> None:
        made = one("8")
        made.ledger.reports.drop("n1")
        assert made.write() == ("a", "")
