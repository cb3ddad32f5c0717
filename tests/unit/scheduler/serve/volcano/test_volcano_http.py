"""Volcano's verbs over HTTP: every call gets 200 and an answer that Go can read; tests/unit/fuzz has more bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from scheduling import Service, call, counts, pod
from topowise_scheduler.serve.extender import http
from topowise_scheduler.serve.extender.callers import Callers
from volcano import RECORDED, node_info, serving, task

_MAX_BODY_BYTES = 1 << 20
_REGISTRY = CollectorRegistry()


def application(*, is_enabled: bool = True) -> http.Application:
    service = Service()
    service.report(counts("n1", ("8", "8"), included=()))
    service.put(pod("running", "3", node="n1"))
    metrics = http.Metrics(_REGISTRY if is_enabled else CollectorRegistry())
    return http.Application(
        service.served(), metrics, _MAX_BODY_BYTES, Callers(()), volcano=serving(service) if is_enabled else None
    )


@pytest.fixture(scope="module")
def app() -> http.Application:
    return application()


# The fields of each answer with their types in Go; a field that is missing, or null, is another thing for each of them.
_ANSWERS: dict[str, dict[str, type]] = {
    "predicate": {"status": str, "code": int},
    "prioritize": {"nodeScore": dict, "errorMessage": str},
    "allocateFunc": {"errorMessage": str},
    "deallocateFunc": {"errorMessage": str},
    "preemptable": {"status": int, "victims": list},
    "reclaimable": {"status": int, "victims": list},
    "onSessionOpen": {},
    "onSessionClose": {},
}


def check(app: http.Application, verb: str, body: bytes) -> Any:
    status, answer = call(app, f"/volcano/{verb}", iter([body]))
    assert status == 200
    shown = json.loads(answer)
    assert {name: type(value) for name, value in shown.items()} == _ANSWERS[verb]
    if verb == "predicate":
        assert (shown["code"] == 0) == (shown["status"] == "")
    return shown


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_recorded_bodies_with_a_part_cut_out_are_answered_too(app: http.Application, data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(sorted(RECORDED.glob("*.json"))))
    body = file.read_bytes()
    begin, end = sorted((data.draw(st.integers(0, len(body))), data.draw(st.integers(0, len(body)))))
    check(app, file.stem.partition("-")[2], body[:begin] + body[end:])


@pytest.mark.parametrize(
    ("verb", "body", "shown"),
    [
        ("predicate", b"{", {"code": 1}),
        ("predicate", b"{}", {"code": 1}),
        ("prioritize", b"{", {"nodeScore": {}, "errorMessage": ""}),
        ("preemptable", b"{", {"status": -1, "victims": []}),
        ("allocateFunc", b'{"task":{"Pod":{"metadata":{},"spec":{}}}}', {}),
    ],
)
def test_what_is_wrong_is_said_where_volcano_logs_it(
    app: http.Application, verb: str, body: bytes, shown: dict[str, Any]
) -> None:
    answer = check(app, verb, body)
    assert answer.items() >= shown.items()
    words = answer.get("errorMessage", "") if verb == "allocateFunc" else answer.get("status", "")
    if verb == "predicate":
        assert "Volcano's extender plug-in" in words
    if verb == "allocateFunc":
        assert "NodeName" in words


def test_a_policy_that_no_kubelet_has_is_named(app: http.Application) -> None:
    odd = pod("p", annotations={"volcano.sh/numa-topology-policy": "strict"})
    shown = check(app, "predicate", json.dumps({"task": task(odd), "node": node_info("n1")}).encode())
    assert shown["code"] == 1
    assert "'strict'" in shown["status"]


def test_a_whole_cluster_is_read_to_its_end_and_nothing_of_it_kept(app: http.Application) -> None:
    part = bytes(64 << 10)
    left = iter([part] * 512)
    assert call(app, "/volcano/onSessionOpen", left) == (200, b"{}")
    assert next(left, None) is None


def test_other_requests_have_a_limit_and_no_score_beyond_it_stops_a_task(app: http.Application) -> None:
    large = bytes(_MAX_BODY_BYTES + 1)
    assert f"request is larger than {_MAX_BODY_BYTES} bytes" in check(app, "predicate", large)["status"]
    assert check(app, "prioritize", large) == {"nodeScore": {}, "errorMessage": ""}


def test_prioritize_of_both_protocols_is_told_apart_by_the_folder(app: http.Application) -> None:
    body = (RECORDED / "04-prioritize.json").read_bytes()
    assert json.loads(call(app, "/any/volcano/prioritize", iter([body]))[1])["nodeScore"] == {"n1": 0.0, "n2": 0.0}
    theirs = json.dumps({"Pod": pod("p"), "NodeNames": ["n1"]}).encode()
    assert json.loads(call(app, "/prioritize", iter([theirs]))[1])[0]["Host"] == "n1"


def test_verbs_that_are_not_there_are_refused_with_those_that_are(app: http.Application) -> None:
    status, text = call(app, "/volcano/jobEnqueueable", iter([b"{}"]))
    assert status == 404
    names = ", ".join(f"volcano/{one}" for one in _ANSWERS)
    assert text == f"no verb 'volcano/jobEnqueueable', expected one of {names}\n".encode()
    assert b"volcano" not in call(app, "/jobEnqueueable", iter([b"{}"]))[1]


def test_volcano_is_told_where_to_switch_it_on() -> None:
    status, text = call(application(is_enabled=False), "/volcano/prioritize", iter([b"{}"]))
    assert (status, text) == (
        404,
        b"no verb 'volcano/prioritize': Volcano is not served, set volcano.enabled in SchedulerConfiguration\n",
    )


def test_calls_are_counted_under_names_of_their_own(app: http.Application) -> None:
    name = "topowise_scheduler_extender_request_duration_seconds_count"
    before = _REGISTRY.get_sample_value(name, {"verb": "volcano_predicate"}) or 0.0
    refused = _REGISTRY.get_sample_value(
        "topowise_scheduler_extender_refused_requests_total", {"verb": "volcano_predicate"}
    )
    check(app, "predicate", b"{")
    assert _REGISTRY.get_sample_value(name, {"verb": "volcano_predicate"}) == before + 1
    assert (
        _REGISTRY.get_sample_value("topowise_scheduler_extender_refused_requests_total", {"verb": "volcano_predicate"})
        == (refused or 0.0) + 1
    )
