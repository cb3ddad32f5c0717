"""Constraints between pods: kube-scheduler cannot check them once one node is named, so the placement does."""

from __future__ import annotations

from typing import Any

import pytest

from placing import Placing
from topowise.placement import GROUP, GROUP_SIZE

ZONE = "topology.kubernetes.io/zone"
SELECTOR = {"matchLabels": {"app": "a"}}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"topologyKey": "kubernetes.io/hostname", "labelSelector": SELECTOR}
]}}  # fmt: skip
TOGETHER = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"topologyKey": ZONE, "labelSelector": SELECTOR}
]}}  # fmt: skip


def spread(**fields: Any) -> list[dict[str, Any]]:
    return [
        {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECTOR} | fields
    ]


@pytest.fixture
def placing() -> Placing:
    """Four nodes, the first two in zone a; TightFit would fill one node after the other."""
    placing = Placing("8", "8", "8", "8")
    for number in range(1, 5):
        labels = {ZONE: "ab"[number > 2], "kubernetes.io/hostname": f"n{number}"}
        placing.node(f"n{number}", labels=labels)
    return placing


def zones(nodes: dict[str, str]) -> dict[str, str]:
    return {name: "ab"[node in ("n3", "n4")] for name, node in nodes.items()}


def test_pods_are_spread_over_zones(placing: Placing) -> None:
    for name in "abcd":
        placing.put(name, labels={"app": "a"}, topologySpreadConstraints=spread())
    assert sorted(zones(placing.place_all()).values()) == ["a", "a", "b", "b"]


def test_pods_that_repel_each_other_get_a_node_each_and_the_fifth_waits(placing: Placing) -> None:
    for name in "abcde":
        placing.put(name, labels={"app": "a"}, affinity=APART)
    assert sorted(placing.place_all().values()) == ["n1", "n2", "n3", "n4"]
    placing.put("plain", "1", labels={"app": "a"})
    # The pods that are placed already do not want it beside them.
    assert placing.place_all() == {}
    placing.put("other", "1", labels={"app": "b"})
    assert set(placing.place_all()) == {"other"}


def test_a_pod_goes_to_the_zone_of_its_friends(placing: Placing) -> None:
    placing.put("friend", labels={"app": "a"}, node="n4")
    placing.put("a", affinity=TOGETHER)
    assert zones(placing.place_all()) == {"a": "b"}


def test_host_ports_are_taken_once_a_node(placing: Placing) -> None:
    ports = [{"containerPort": 80, "hostPort": 80}]
    for name in "abcde":
        containers = [{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}, "ports": ports}]
        placing.put(name, containers=containers)
    assert sorted(placing.place_all().values()) == ["n1", "n2", "n3", "n4"]


def test_a_group_is_spread_too_before_any_of_it_is_placed(placing: Placing) -> None:
    of = {"labels": {"app": "a", GROUP: "g"}, "annotations": {GROUP_SIZE: "4"}}
    for name in "abcd":
        placing.put(name, topologySpreadConstraints=spread(), **of)
    writes = placing.next()
    assert sorted(zones({write.record.name: write.node for write in writes}).values()) == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("spec", "form"),
    [
        ({}, "required"),
        ({"topologySpreadConstraints": spread()}, "required"),
        # kube-scheduler would see one domain, which is fewer than two: it would never let the second pod in.
        ({"topologySpreadConstraints": spread(minDomains=2)}, "nominated"),
        ({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}, "nominated"),
        ({"volumes": [{"name": "data", "emptyDir": {}}]}, "required"),
    ],
)
def test_a_pod_that_kube_scheduler_may_refuse_is_only_nominated(
    placing: Placing, spec: dict[str, Any], form: str
) -> None:
    placing.put("first", labels={"app": "a"}, node="n1")
    placing.put("second", labels={"app": "a"}, node="n3")
    placing.put("a", labels={"app": "a"}, **spec)
    assert [write.form for write in placing.next()] == [form]


def test_a_pod_waits_for_a_friend_that_is_bound_or_placed_later(placing: Placing) -> None:
    placing.put("a", affinity=TOGETHER)
    assert placing.place_all() == {}
    placing.put("friend", "1", labels={"app": "a"}, node="n4")
    assert zones(placing.place_all()) == {"a": "b"}
    placing.put("b", labels={"app": "b"}, affinity={"podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "c"}}}
        ]
    }})  # fmt: skip
    assert placing.place_all() == {}
    placing.put("later", labels={"app": "c"})
    assert set(placing.place_all()) == {"b", "later"}


def test_a_pod_waits_until_another_domain_has_as_many_pods(placing: Placing) -> None:
    for name in ("n3", "n4"):
        placing.node(name, {"unschedulable": True}, labels={ZONE: "b", "kubernetes.io/hostname": name})
    for name in ("one", "two"):
        placing.put(name, labels={"app": "a"}, topologySpreadConstraints=spread())
    assert set(placing.place_all()) == {"one"}
    placing.put("foreign", "1", labels={"app": "a"}, node="n3")
    assert set(placing.place_all()) == {"two"}


def test_a_pod_may_go_where_a_pod_has_lost_its_label(placing: Placing) -> None:
    for number in range(1, 5):
        placing.put(f"old-{number}", "1", labels={"app": "a"}, node=f"n{number}")
    placing.put("a", affinity=APART)
    assert placing.place_all() == {}
    placing.put("old-2", labels={"app": "b"})
    assert placing.place_all() == {"a": "n2"}


def test_a_node_without_a_report_is_no_way_around_constraints(placing: Placing) -> None:
    placing.node("n5", labels={ZONE: "a", "kubernetes.io/hostname": "n5"})
    for number in range(1, 6):
        placing.put(f"old-{number}", "1", labels={"app": "a"}, node=f"n{number}")
    placing.put("a", affinity=APART)
    assert placing.place_all() == {}


def test_a_pod_counts_where_it_is_bound_after_all(placing: Placing) -> None:
    """It was assumed on another node."""
    record = placing.put("moved", labels={"app": "a"})
    assert placing.service.assume(record, "n1") == ""
    placing.put("moved", node="n2")
    for name in "abcd":
        placing.put(name, labels={"app": "a"}, affinity=APART)
    assert sorted(placing.place_all().values()) == ["n1", "n3", "n4"]


def test_what_a_lost_write_placed_repels_nobody(placing: Placing) -> None:
    for name in "abcd":
        placing.put(name, labels={"app": "a"}, affinity=APART)
    writes = []
    while more := placing.next():
        writes += more
    assert len(writes) == 4
    placing.put("late", labels={"app": "a"}, affinity=APART)
    assert placing.next() == []
    placing.put("a", labels={"app": "b"})
    assert [write.record.name for write in placing.next()] == ["late"]


def test_pods_of_equal_labels_and_other_constraints_wait_for_themselves_alone(placing: Placing) -> None:
    """The first fits nowhere, and is asked about first."""
    for number in (1, 3):
        placing.put(f"old-{number}", "1", labels={"app": "a"}, node=f"n{number}")
    in_zones = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": ZONE, "labelSelector": SELECTOR}
    ]}}  # fmt: skip
    placing.put("by-zone", labels={"app": "a"}, affinity=in_zones)
    placing.put("by-node", labels={"app": "a"}, affinity=APART)
    assert set(placing.place_all()) == {"by-node"}
