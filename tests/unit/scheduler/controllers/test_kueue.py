"""Workloads of Kueue: the states that a check writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from topowise_scheduler.controllers import kueue_objects as kueue
from topowise_scheduler.controllers.kueue_objects import Workload

NOW = 1_800_000_000.0
TEXT = "2027-01-15T08:00:00Z"
QUOTA = {"type": "QuotaReserved", "status": "True"}


def workload(**status: Any) -> Workload:
    full = {
        "conditions": [QUOTA],
        "admissionChecks": [
            {"name": "ours", "state": "Pending", "message": "", "lastTransitionTime": "2027-01-15T07:00:00Z"},
            {"name": "theirs", "state": "Ready", "message": "", "lastTransitionTime": "2027-01-15T07:30:00Z"},
        ],
        **status,
    }
    return kueue.msgspec.json.decode(json.dumps({"metadata": {"uid": "u"}, "status": full}), type=Workload)


def checks(**entry: Any) -> list[dict[str, Any]]:
    return [{"name": "ours", "state": "Ready", "message": "", "lastTransitionTime": TEXT, **entry}]


def test_a_retry_has_its_pause_where_each_version_of_kueue_reads_it() -> None:
    status = kueue.patch(workload(), "ours", "Retry", "no", NOW)["status"]
    ours, theirs = status["admissionChecks"]
    assert (ours["state"], ours["requeueAfterSeconds"], ours["lastTransitionTime"]) == ("Retry", 10, TEXT)
    assert theirs["state"] == "Ready"
    assert status["requeueState"] == {"count": 1, "requeueAt": "2027-01-15T08:00:10Z"}


@pytest.mark.parametrize(
    ("state", "of_check", "pause"),
    [({"count": 2}, None, 40), (None, 2, 40), ({"count": 1}, 3, 80), ({"count": 90}, None, 600), (None, "x", 10)],
)
def test_the_pause_doubles_with_the_attempts_that_kueue_has_counted(state: Any, of_check: Any, pause: int) -> None:
    before = workload(requeueState=state, admissionChecks=checks(state="Pending", retryCount=of_check))
    status = kueue.patch(before, "ours", "Retry", "no", NOW)["status"]
    assert status["admissionChecks"][0]["requeueAfterSeconds"] == pause


def test_a_check_that_stays_pending_keeps_the_time_of_its_transition() -> None:
    status = kueue.patch(workload(), "ours", "Pending", "new nodes are requested", NOW)["status"]
    ours, _ = status["admissionChecks"]
    assert (ours["message"], ours["lastTransitionTime"]) == ("new nodes are requested", "2027-01-15T07:00:00Z")
    assert "requeueState" not in status


@pytest.mark.parametrize("condition", ["Evicted", "Finished", ""])
def test_a_check_is_ready_while_its_workload_is_admitted(condition: str) -> None:
    more = [{"type": condition, "status": "True"}] if condition else []
    item = workload(conditions=[QUOTA, *more], admissionChecks=checks())
    assert item.ready_since(frozenset(("ours",))) == (None if condition else NOW)
    assert item.ready_since(frozenset(("others",))) is None
