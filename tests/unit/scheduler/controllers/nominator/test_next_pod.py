"""Who is nominated, in which order, and for which node."""

from __future__ import annotations

from typing import Any

import pytest

from nominating import TRIED, Nominating
from scheduling import counts
from topowise_scheduler.controllers.nominator import deciding
from topowise_scheduler.options.device_affinity.affinity_terms import ANNOTATION
from topowise_scheduler.options.device_affinity.outcomes import NO_TERMS


def test_the_next_one_finds_taken_what_was_decided_before_it() -> None:
    made = Nominating("8", "8")
    for name in ("a", "b", "c"):
        made.put(name, "5")
    assert made.write_all() == {"a": "n1", "b": "n2"}
    assert made.nominated() == {"a": "n1", "b": "n2"}


def test_the_best_node_is_taken_as_the_strategy_has_it() -> None:
    made = Nominating("8", "3", "5")
    made.put("a", "3")
    made.put("b", "3")
    assert made.write_all() == {"a": "n2", "b": "n3"}


def test_higher_priorities_come_first_and_then_the_older_ones() -> None:
    made = Nominating("8")
    made.put("later", creationTimestamp="2026-01-01T00:00:09Z")
    made.put("a")
    made.put("high", priority=5, creationTimestamp="2026-01-01T00:00:10Z")
    made.put("b")
    assert list(made.write_all()) == ["high", "a", "b", "later"]


def test_a_pod_is_booked_from_the_decision_on_and_an_older_event_changes_nothing() -> None:
    made = Nominating("8")
    made.put("a")
    assert made.next() == ("a", "n1")
    made.event("a")
    assert made.nominated() == {"a": "n1"}


def test_a_pod_that_has_changed_before_the_write_is_decided_anew() -> None:
    made = Nominating("8")
    made.put("a")
    write = made.decisions.next()
    assert write is not None
    made.put("a", labels={"x": "y"})
    assert made.nominated() == {}
    assert not made.apply(write)
    assert made.write() == ("a", "n1")


def test_room_of_a_write_that_nobody_knows_of_is_given_back_and_the_pod_comes_again() -> None:
    made = Nominating("8")
    made.put("a")
    assert made.next() == ("a", "n1")
    made.clock.now += 16
    made.ledger.tick()
    assert made.nominated() == {}
    assert made.next() == ("a", "n1")


@pytest.mark.parametrize(
    "fields",
    [
        {"schedulerName": "default-scheduler"},
        {"conditions": TRIED},
        {"nominatedNodeName": "n1"},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"schedulingGates": [{"name": "wait"}]},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x"}]}}},
        {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}},
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        {"volumes": [{"name": "v", "rbd": {"image": "i"}}]},
        {"resourceClaims": [{"name": "gpu"}]},
        {"schedulingGroup": {"podGroupName": "g"}},
        {"nodeSelector": {"zone": "b"}},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
                        ]
                    }
                }
            }
        },
    ],
    ids=str,
)
def test_pods_that_are_left_to_kube_scheduler(fields: dict[str, Any]) -> None:
    made = Nominating("8")
    made.put("a", **fields)
    assert made.next() is None
    made.put("b")
    assert made.next() == ("b", "n1")


def test_pods_that_wish_for_devices_near_each_other_are_left_to_kube_scheduler() -> None:
    made = Nominating("8")
    gpus = {"cpu": "1", "memory": "1Gi", "example.com/gpu": "2"}
    container = {"name": "c", "resources": {"requests": gpus, "limits": gpus}}
    record = made.put("a", containers=[container], annotations={ANNOTATION: "example.com/gpu: pcie-root"})
    assert record.demand(NO_TERMS).terms
    assert not made.decisions._may_be_nominated(record)


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"unschedulable": True}, {}),
        ({"taints": [{"key": "a", "effect": "NoSchedule"}]}, {}),
        ({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}, {}),
        ({}, {"ready": "False"}),
        ({}, {"allocatable": {"cpu": "1", "memory": "64Gi", "pods": "110"}}),
        ({}, {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "0"}}),
    ],
    ids=str,
)
def test_nodes_that_kube_scheduler_would_refuse_or_avoid(spec: dict[str, Any], fields: dict[str, Any]) -> None:
    made = Nominating("4", "8")
    made.node("n1", spec, **fields)
    made.put("a")
    assert made.next() == ("a", "n2")


def test_sums_of_pods_that_nobody_aligns_count_too() -> None:
    made = Nominating("8", "8")
    made.node("n1", allocatable={"cpu": "8", "memory": "3Gi", "pods": "110"})
    made.put("a", memory="2Gi")
    made.put("b", memory="2Gi")
    assert made.write_all() == {"a": "n1", "b": "n2"}


def test_nobody_is_nominated_further_ahead_than_allowed() -> None:
    made = Nominating("8", ahead=2)
    for name in "abcd":
        made.put(name, "1")
    assert list(made.write_all()) == ["a", "b"]
    made.bind("a", "n1")
    assert list(made.write_all()) == ["c"]


class TestBurst:
    def test_a_pod_that_comes_alone_is_left_to_kube_scheduler(self) -> None:
        made = Nominating("8", needs_burst=True)
        made.put("a")
        made.clock.now += 5
        assert made.next() is None

    def test_many_are_nominated_once_they_wait_for_longer_than_kube_scheduler_takes_for_a_few(self) -> None:
        made = Nominating("8", "8", "8", needs_burst=True)
        for number in range(12):
            made.put(f"p{number:02}", "1")
        assert made.next() is None
        made.clock.now += 0.4
        # The last nine are few again.
        assert list(made.write_all()) == ["p00", "p01", "p02"]

    def test_a_pod_that_kube_scheduler_asks_about_has_been_taken(self) -> None:
        made = Nominating("8", needs_burst=False)
        record = made.put("a")
        made.ledger.remember(record)
        assert made.next() is None


def test_kinds_of_pods_that_are_placed_elsewhere_are_left_alone_and_tried_again_later() -> None:
    made = Nominating("8", "8")
    for number in range(20):
        made.put(f"p{number}", "1")
        assert made.write() == (f"p{number}", "n1")
        made.bind(f"p{number}", "n2")
        made.delete(f"p{number}")
    made.put("next", "1")
    assert made.next() is None
    made.put("other", "2")
    assert made.write() == ("other", "n1")
    made.bind("other", "n1")
    made.clock.now += 61
    made.put("later", "1")
    assert made.next() == ("later", "n1")


def test_a_node_that_comes_and_one_that_goes() -> None:
    made = Nominating("2")
    made.put("a")
    made.put("b")
    assert made.write_all() == {"a": "n1"}
    made.service.report(counts("n2", "8", included=(), version="1"))
    made.node("n2")
    made.put("c")
    assert made.write_all() == {"c": "n2"}
    made.ledger.reports.drop("n2")
    made.put("d")
    assert made.write_all() == {"c": ""}


def test_a_new_kind_of_pod_is_judged_in_parts_and_the_pod_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """On thousands of nodes the first look takes long, and others want answers meanwhile."""
    monkeypatch.setattr(deciding, "_MAX_NODES", 2)
    made = Nominating("8", "8", "8", "8", "4")
    made.put("a", "3")
    assert [made.next() for _ in range(3)] == [None, None, ("a", "n5")]
    made.put("b", "3")
    assert made.next() == ("b", "n1"), "only what has changed is looked at"


def test_a_replica_that_never_nominates_keeps_nothing_of_pods_that_are_gone() -> None:
    made = Nominating("8")
    made.put("stays", "1")
    for number in range(1000):
        made.put(f"q{number}", "1")
        made.delete(f"q{number}")
    assert len(made.ledger.queue) == 1
    assert len(made.ledger.queue._heap) < 100
    assert made.next() == ("stays", "n1")
