"""The state machine of labels: each input, the label that is sent, and the status that the scheduler reads."""

from __future__ import annotations

from math import inf

import pytest

from topowise.steering import ALLOCATED, Request, Status
from topowise_exporter.steering.labels import RESTART_S, Labels

START = 1000.0


def request(number: int = 1, numa: int = 1, *, containers: int = 1, seconds: float = 5.0) -> Request:
    return Request(f"r{number}", numa, containers, seconds)


@pytest.fixture
def labels() -> Labels:
    """A kubelet that started long ago shows markers without a label."""
    labels = Labels([0, 1])
    labels.connect(START - 100, is_new_kubelet=True)
    labels.show([None], START - 99)
    return labels


def labelled(labels: Labels, asked: Request, now: float = START) -> None:
    labels.request(asked, now, is_new=True)
    labels.show([asked.numa], now)
    assert labels.status == Status(asked.id, "labelled")


def test_a_request_is_acknowledged_when_the_kubelet_shows_the_label(labels: Labels) -> None:
    labels.request(request(), START, is_new=True)
    assert (labels.label, labels.status, labels.is_waiting) == (1, None, True)
    labels.show([None], START + 0.1)
    labels.show([None, 1], START + 0.2)
    labels.show([], START + 0.3)
    assert labels.status is None
    labels.show([1], START + 0.4)
    assert labels.status == Status("r1", "labelled")
    assert not labels.is_waiting


def test_the_last_allocation_of_the_pod_ends_the_label(labels: Labels) -> None:
    labelled(labels, request(containers=2))
    labels.allocate(1, START + 1)
    assert labels.label == 1
    labels.allocate(1, START + 1)
    assert labels.label is None
    assert labels.status == Status("r1", "labelled"), "the kubelet still shows the label"
    labels.show([1], START + 1)
    assert labels.status == Status("r1", "labelled")
    labels.show([None], START + 1)
    assert labels.status == Status("r1", "released", ALLOCATED)
    assert labels.wakes_at == inf


def test_allocations_before_the_acknowledgement_are_of_other_pods(labels: Labels) -> None:
    labels.request(request(), START, is_new=True)
    labels.allocate(1, START)
    labels.show([1], START)
    assert labels.label == 1
    assert labels.status == Status("r1", "labelled")


def test_a_request_expires_on_the_clock_of_the_node(labels: Labels) -> None:
    labelled(labels, request(seconds=5))
    assert labels.wakes_at == START + 5
    labels.step(START + 4.9)
    assert labels.label == 1
    labels.step(START + 5)
    assert labels.label is None
    labels.show([None], START + 5)
    assert labels.status == Status("r1", "released", "the request has expired")


def test_a_withdrawn_request_leaves_no_label(labels: Labels) -> None:
    labelled(labels, request())
    labels.request(None, START + 1, is_new=True)
    labels.show([None], START + 1)
    assert labels.status == Status("r1", "released", "the request was withdrawn")


def test_the_next_label_waits_until_the_kubelet_shows_the_last_label(labels: Labels) -> None:
    """A list of the first request must not acknowledge the third."""
    labelled(labels, request(1, numa=1))
    labels.request(request(2, numa=0), START + 1, is_new=True)
    labels.request(request(3, numa=1), START + 1, is_new=True)
    assert labels.label == 0
    labels.show([1], START + 1)
    assert labels.status == Status("r1", "labelled")
    labels.show([0], START + 1)
    assert labels.label == 1
    labels.show([0], START + 1)
    assert labels.status == Status("r1", "labelled")
    labels.show([1], START + 1)
    assert labels.status == Status("r3", "labelled")


def test_a_request_that_replaces_a_request_for_the_same_numa_node_is_labelled_already(labels: Labels) -> None:
    """No further list is sent, so no further list of the kubelet is looked at."""
    labelled(labels, request(1, numa=1))
    labels.request(request(2, numa=1), START + 1, is_new=True)
    assert labels.status == Status("r2", "labelled")
    assert not labels.is_waiting


def test_a_kubelet_that_shows_nothing_does_not_keep_the_label(labels: Labels) -> None:
    labels.request(request(seconds=5), START, is_new=True)
    labels.step(START + 5)
    assert labels.label is None
    assert labels.status is None, "the kubelet may still have the label"


def test_a_request_that_ends_at_once_waits_for_the_list_that_was_sent(labels: Labels) -> None:
    labels.request(request(), START, is_new=True)
    labels.request(None, START + 0.1, is_new=True)
    assert (labels.label, labels.wakes_at) == (1, START + 1)
    labels.step(START + 1)
    assert labels.label is None


def test_the_same_request_is_taken_once(labels: Labels) -> None:
    asked = request()
    labelled(labels, asked)
    labels.request(asked, START + 1, is_new=False)
    labels.request(asked, START + 1, is_new=True)
    assert labels.status == Status("r1", "labelled")
    labels.allocate(1, START + 2)
    labels.show([None], START + 2)
    labels.request(asked, START + 3, is_new=True)
    assert labels.label is None
    assert labels.status is not None
    assert labels.status.state == "released"


@pytest.mark.parametrize(
    ("asked", "is_new", "reason"),
    [
        (request(numa=2), True, "NUMA node 2 does not exist, expected one of [0, 1]"),
        (request(), False, "the request is older than the watch of the plug-in; send a new request"),
    ],
)
def test_a_request_that_is_not_taken_is_rejected_with_its_reason(
    labels: Labels, asked: Request, is_new: bool, reason: str
) -> None:
    labels.request(asked, START, is_new=is_new)
    assert (labels.label, labels.status) == (None, Status("r1", "rejected", reason))


def test_a_rejection_waits_until_the_kubelet_has_no_label(labels: Labels) -> None:
    labelled(labels, request(1))
    labels.request(request(2, numa=7), START, is_new=True)
    assert labels.label is None
    assert labels.status == Status("r1", "labelled")
    labels.show([None], START)
    assert labels.status is not None
    assert (labels.status.id, labels.status.state) == ("r2", "rejected")


def test_an_unreadable_request_ends_the_label(labels: Labels) -> None:
    labelled(labels, request())
    labels.reject("not JSON", START)
    labels.show([None], START)
    assert labels.status == Status("", "rejected", "not JSON")
    labels.request(request(), START, is_new=True)
    assert labels.label == 1


def test_a_kubelet_that_has_just_started_admits_its_pods_without_a_label(labels: Labels) -> None:
    """A running pod on NUMA node 0 would be refused with the label 1."""
    labelled(labels, request(1))
    labels.connect(START, is_new_kubelet=True)
    assert labels.label is None
    labels.show([None], START)
    assert labels.status == Status("r1", "released", "the kubelet has connected again")
    labels.request(request(2), START + RESTART_S - 1, is_new=True)
    assert labels.status == Status("r2", "rejected", "the kubelet has just started; try again in 1 s")
    labels.request(request(3), START + RESTART_S, is_new=True)
    assert labels.label == 1


def test_the_same_kubelet_may_connect_again_without_a_pause(labels: Labels) -> None:
    labels.disconnect(START)
    labels.connect(START, is_new_kubelet=False)
    labels.show([None], START)
    labels.request(request(), START, is_new=True)
    assert labels.label == 1


def test_a_disconnected_kubelet_ends_the_request_and_gets_no_other(labels: Labels) -> None:
    labelled(labels, request(1))
    labels.disconnect(START)
    assert labels.status == Status("r1", "released", "the kubelet has disconnected")
    assert not labels.is_waiting
    labels.request(request(2), START, is_new=True)
    reason = "the kubelet is not connected to the plug-in; try again later"
    assert labels.status == Status("r2", "rejected", reason)
    labels.show([1], START)
    assert labels.status == Status("r2", "rejected", reason)
