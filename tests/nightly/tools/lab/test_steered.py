"""What the lab makes of the Leases of steering."""

from __future__ import annotations

from typing import Any

from lab.parts.steered_binds import label_seconds
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
