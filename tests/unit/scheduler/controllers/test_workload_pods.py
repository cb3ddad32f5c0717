"""Pods of Workloads that need new nodes."""

from __future__ import annotations

import json

import pytest

from scheduling import Clock, Service, pod
from topowise_scheduler.controllers.workload_pods import WorkloadPods
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.scale_up.placeholders import Placeholder, PodName
from topowise_scheduler.verdicts import kube_scheduler


def record(name: str) -> PodRecord:
    return Service().trial.record(kube_scheduler.decode(json.dumps(pod(name)).encode()))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pods(clock: Clock) -> WorkloadPods:
    return WorkloadPods(patience=10.0, clock=clock)


def test_pods_are_due_after_their_patience_and_as_a_gang(pods: WorkloadPods, clock: Clock) -> None:
    pods.put("w", [record("a"), record("b")], {})
    assert pods.due(()) == []
    clock.now += 6
    pods.put("w", [record("a"), record("b")], {"uid-c": "n1"})
    clock.now += 6
    assert [(item.uid, item.group) for item in pods.due(())] == [("uid-a", "w"), ("uid-b", "w")]
    assert [item.uid for item in pods.due({"uid-a"})] == ["uid-b"]
    assert pods.nodes_of({"uid-c"}) == ["n1"]


def test_an_answer_is_a_request_or_its_refusal(pods: WorkloadPods) -> None:
    pods.put("w", [record("a")], {})
    pods.put("v", [record("b")], {})
    pods.put("new", [record("c")], {})
    active = Placeholder("p", "u", (("pool", "a"),), (PodName("uid-a", "default", "a"),), 0.0)
    pods.set_answers({"w": "the limits", "v": "the limits"}, [active])
    assert [pods.answer(name) for name in ("w", "v", "new")] == ["", "the limits", None]


def test_a_scale_up_that_does_not_run_is_no_reason_to_wait(pods: WorkloadPods, clock: Clock) -> None:
    pods.put("w", [record("a")], {})
    clock.now += 71
    assert pods.answer("w") == "the scale-up is not running"


def test_only_workloads_that_are_there_want_nodes(pods: WorkloadPods, clock: Clock) -> None:
    pods.put("w", [record("a")], {})
    pods.put("v", [record("b")], {})
    pods.fits("admitted", {"uid-c": "n1", "uid-d": "n2"})
    assert pods.keep({"v"}) == ["w"]
    assert list(pods.waiting) == ["uid-b"]
    assert pods.nodes_of({"uid-c"}) == ["n1", "n2"], "the scale-up has not seen it yet"
    assert pods.nodes_of({"uid-b"}) == []
    clock.now += 61
    pods.keep({"v"})
    assert pods.nodes_of({"uid-c"}) == []
