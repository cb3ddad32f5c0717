"""Pods that require a NUMA node: filter refuses the nodes that cannot give it, and says why."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling import Service, counts, exact, kubelet, pod
from steering_pods import marked, requiring
from topowise_scheduler.verdicts.refusals import Refusal


def refusal(service: Service, document: dict[str, Any]) -> str:
    return service.answers.verdicts(service.question(document, "n1")).refusal(0)


def made(node_options: dict[str, Any] | None = None, **options: Any) -> Service:
    service = Service(**options)
    service.report(exact(kubelet(**(node_options or {})), **(node_options or {})))
    return service


def test_a_numa_node_with_room_fits() -> None:
    service = made()
    assert refusal(service, requiring("a", 1, "4")) is None
    assert refusal(service, requiring("a", 0, "3")) is None


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (requiring("a", 0, "4"), Refusal.NUMA_NODE_FULL),
        (requiring("a", 2), Refusal.NO_SUCH_NUMA_NODE),
        (pod("a", annotations={"topowise.io/numa-node": "1"}), Refusal.NO_MARKERS),
    ],
)
def test_a_node_that_cannot_give_it_is_refused(document: dict[str, Any], text: Refusal | None) -> None:
    assert refusal(made(), document) == text


def test_without_steering_no_node_gives_it() -> None:
    assert refusal(made(steers=False), requiring("a", 1)) == Refusal.STEERING_IS_OFF
    assert refusal(made(steers=False), marked("a")) is None
    # The plug-in has gone, and the kubelet of a Node that lists the resource counts.
    assert refusal(made(steers=False, markers=lambda name: 0), marked("a")) == Refusal.TOO_FEW_MARKERS


@pytest.mark.parametrize(
    ("markers", "document", "text"),
    [
        (None, marked("a"), None),
        (None, requiring("a", 1), Refusal.NODE_HAS_NO_MARKERS),
        (0, marked("a"), Refusal.TOO_FEW_MARKERS),
        (3, marked("a", "1", "1"), Refusal.TOO_FEW_MARKERS),
        (4, marked("a", "1", "1"), None),
        (0, pod("a", "1"), None),
    ],
    ids=str,
)
def test_a_node_has_enough_markers_or_none_at_all(
    markers: int | None, document: dict[str, Any], text: Refusal | None
) -> None:
    """A kubelet ignores the request only if its Node does not list the resource. The pod on the node has two."""
    service = made(markers=lambda name: markers)
    service.put(marked("there", "1", "1", node="n1"))
    assert refusal(service, document) == text
    service.put(marked("ended", "1", node="n1"))
    service.put(marked("ended", "1", node="n1", phase="Succeeded"))
    assert refusal(service, document) == text


def test_a_pod_does_not_take_its_own_markers() -> None:
    service = made(markers=lambda name: 1)
    record = service.put(marked("a", "1"))
    assert refusal(service, marked("a", "1")) is None
    service.reserve(record)
    assert refusal(service, marked("a", "1")) is None
    assert refusal(service, marked("b", "1")) == Refusal.TOO_FEW_MARKERS


def test_a_node_without_a_report_does_not_fit() -> None:
    assert refusal(Service(), requiring("a", 1)) == Refusal.NO_SUCH_NUMA_NODE


def test_the_verdict_follows_the_node() -> None:
    service = made()
    assert refusal(service, requiring("a", 1)) is None
    full = kubelet()
    service.put(pod("b", "4"))
    record = service.put(pod("b", "4", node="n1"))
    assert full.admit_view(record.view(full)).admitted
    service.report(exact(full, "2"))
    assert refusal(service, requiring("a", 1)) == Refusal.NUMA_NODE_FULL


def test_an_unreadable_annotation_is_an_error_of_the_question() -> None:
    service = made()
    record = service.put(requiring("a", "first"))
    assert "topowise.io/numa-node" in str(record.problem)


def test_reports_with_amounts_only_are_enough() -> None:
    service = Service()
    service.report(counts("n1", ("4", "4"), included=()))
    assert refusal(service, requiring("a", 1)) is None
    assert refusal(service, requiring("a", 1, "5")) is not None
