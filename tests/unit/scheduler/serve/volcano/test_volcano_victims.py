"""Whom Volcano may evict for a pod's alignment."""

from __future__ import annotations

from typing import Any

import pytest

from refusal_words import refusals
from scheduling import Service, counts, pod
from volcano import RELEASING, Volcano

PERMIT, ABSTAIN, REJECT = 1, 0, -1


def running(name: str, cpu: str, priority: int = 0) -> dict[str, Any]:
    fields: dict[str, Any] = {"phase": "Running", "startTime": "2026-08-21T09:00:00Z", "priority": priority}
    return pod(name, cpu, node="n", **fields)


@pytest.fixture
def service() -> Service:
    """Zone 0 has two pods of four CPUs, zone 1 one of six; two CPUs are free there."""
    made = Service()
    placed = {"left-a": 0, "left-b": 0, "right": 1}
    made.report(counts("n", ("0", "2"), included=tuple(placed), placed=placed))
    for document in evictees():
        made.put(document)
    return made


def evictees() -> list[dict[str, Any]]:
    return [running("left-a", "4", 5), running("left-b", "4", 9), running("right", "6", 7)]


@pytest.mark.parametrize(
    ("cpu", "offered", "expected"),
    [
        ("2", ("left-a", "left-b", "right"), (ABSTAIN, [])),
        ("4", ("left-a", "left-b", "right"), (PERMIT, ["left-a"])),
        ("8", ("left-a", "left-b", "right"), (PERMIT, ["right"])),
        ("8", ("left-a", "left-b"), (PERMIT, ["left-a", "left-b"])),
        ("8", ("left-a",), (REJECT, [])),
        ("4", (), (ABSTAIN, [])),
        ("9", ("left-a", "left-b", "right"), (REJECT, [])),
    ],
)
def test_a_set_is_named_that_suffices_on_one_numa_node(
    service: Service, cpu: str, offered: tuple[str, ...], expected: tuple[int, list[str]]
) -> None:
    among = [one for one in evictees() if one["metadata"]["name"] in offered]
    assert Volcano(service).evictable(pod("p", cpu), "n", *among) == expected


def test_nobody_is_named_for_a_pod_that_the_predicate_would_refuse(service: Service) -> None:
    """The node's policy is single-numa-node, whoever leaves."""
    wanted = pod("p", "8", annotations={"volcano.sh/numa-topology-policy": "best-effort"})
    volcano = Volcano(service)
    assert volcano.predicate(wanted, "n")[1] == refusals.OTHER_POLICY
    assert volcano.evictable(wanted, "n", *evictees()) == (REJECT, [])


def test_priorities_of_pods_do_not_forbid_what_volcano_offers(service: Service) -> None:
    assert Volcano(service).evictable(pod("p", "8", priority=-1), "n", *evictees()) == (PERMIT, ["right"])


def test_who_is_to_be_evicted_already_is_not_named_again(service: Service) -> None:
    volcano = Volcano(service)
    volcano.deallocate(running("left-a", "4"), "n", RELEASING)
    assert volcano.evictable(pod("p", "8"), "n", *evictees()[1:]) == (PERMIT, ["right"])
    assert volcano.evictable(pod("p", "8"), "n", evictees()[1]) == (PERMIT, ["left-b"])
    assert volcano.evictable(pod("p", "4"), "n", evictees()[1]) == (ABSTAIN, [])


def test_nobody_is_evicted_because_it_is_not_known_where_newer_pods_lie() -> None:
    service = Service()
    service.report(counts("n", ("8", "6"), included=("old",), placed={"old": 1}))
    service.put(running("old", "2"))
    volcano = Volcano(service)
    for name, cpu in (("a", "5"), ("b", "3")):
        assert volcano.allocate(pod(name, cpu), "n") == ""
    assert volcano.predicate(pod("p", "6"), "n") == (2, refusals.UNCERTAIN)
    assert volcano.evictable(pod("p", "6"), "n", running("old", "2")) == (REJECT, [])


def test_a_pod_without_anything_to_align_and_a_node_that_nobody_has_reported_are_none_of_our_business(
    service: Service,
) -> None:
    volcano = Volcano(service)
    burstable = pod("p")
    burstable["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "8"}}
    assert volcano.evictable(burstable, "n", *evictees()) == (ABSTAIN, [])
    assert volcano.evictable(pod("q", "8"), "unknown-node", *evictees()) == (ABSTAIN, [])
