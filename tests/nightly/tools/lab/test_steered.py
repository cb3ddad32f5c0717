"""What the lab makes of the Leases of steering, and of conditions of pods."""

from __future__ import annotations

from typing import Any

from lab.parts.steered_binds import label_seconds
from lab.parts.waits import late, result
from topowise import steering
from topowise.steering import Request, Status

_NAME = steering.lease_name("dual")


def _lease(request: str = "", status: str = "", state: str = "labelled") -> dict[str, Any]:
    annotations = {
        **({steering.REQUEST: steering.encode(Request(request, 1, 1, 10.0))} if request else {}),
        **({steering.STATUS: steering.encode(Status(status, state))} if status else {}),  # type: ignore[arg-type]
    }
    return {"metadata": {"name": _NAME, "annotations": annotations}}


def test_a_label_has_the_time_from_the_first_event_of_its_request() -> None:
    changes = [
        (1.0, _NAME, _lease("a")),
        (1.5, _NAME, _lease("a", "a")),
        (1.75, _NAME, _lease("a", "a")),
        (2.0, _NAME, _lease("a", "a", "released")),
        (3.0, _NAME, _lease("b", "a", "released")),
        (4.0, _NAME, _lease("b", "b")),
    ]
    assert label_seconds(changes, _NAME) == [0.5, 1.0]


def test_other_leases_and_requests_before_the_watch_do_not_count() -> None:
    changes = [(1.0, "other", _lease("a")), (1.5, "other", _lease("a", "a")), (2.0, _NAME, _lease("", "c"))]
    assert label_seconds(changes, _NAME) == []


def test_a_pod_waited_if_any_of_its_conditions_said_so() -> None:
    waiting = {"type": "PodScheduled", "message": "0/2 nodes: NUMA: pod …, waiting for a new report of the node."}
    full = {"type": "PodScheduled", "message": "0/2 nodes: NUMA: no room that the kubelet could align."}
    changes = [
        (1.0, "p-1", {"status": {"conditions": [waiting]}}),
        (2.0, "p-1", {"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}),
        (2.0, "p-2", {"status": {"conditions": [full]}}),
        (3.0, "q-1", {"status": {"conditions": [waiting]}}),
        (3.0, "p-3", {}),
    ]
    assert late(changes, "p") == {"p-1"}


def test_a_pod_that_no_kubelet_has_decided_about_fails_the_part() -> None:
    problems: list[str] = []
    assert result("a", {"status": {"phase": "Running"}}, problems) == ["placed"]
    assert problems == []
    assert result("b", None, problems) == ["not placed"]
    refused = {"status": {"phase": "Failed", "reason": "TopologyAffinityError", "message": "no room"}}
    assert result("c", refused, problems) == ["refused"]
    assert problems == ["b: not placed in time", "c: TopologyAffinityError: no room"]
