"""The HTTP server answers any body with 200 and valid JSON, and every node of a readable question."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from scheduling import Service, counts, pod, scope
from topowise_scheduler.extender import http
from topowise_scheduler.extender.callers import Callers
from topowise_scheduler.extender.replies import Reply, Verb
from topowise_scheduler.presentation.dashboard.decisions import Decisions


def application(service: Service) -> http.Application:
    return http.Application(service.served(), http.Metrics(CollectorRegistry()), 1 << 20, Callers(()))


def call(app: http.Application, path: str, body: bytes, method: str = "POST", query: bytes = b"") -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope(path, method, query), receive, send))
    start, content = sent
    length = dict(start["headers"])[b"content-length"]
    assert int(length) == len(content["body"])
    return start["status"], content["body"]


@pytest.fixture(scope="module")
def app() -> http.Application:
    service = Service("TightFit")
    service.report(counts("n1", ("8", "8"), included=()))
    service.report(counts("n2", ("2", "1"), included=(), policy="restricted"))
    service.put(pod("running", "3", node="n1"))
    return application(service)


_names = st.sampled_from(["n1", "n2", "unknown", "", "\u0000", "ñ"])
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_quantities = st.sampled_from(
    ["1", "2", "500m", "1Gi", "-1", "x", "1e3", "9223372036854775808", 3, 1.5, None, "", "1.0001"]
)
_amounts = st.none() | st.dictionaries(
    st.sampled_from(["cpu", "memory", "hugepages-2Mi", "example.com/gpu", "", "pods"]), _quantities, max_size=4
)
_container = st.fixed_dictionaries(
    {"name": st.text(max_size=3)},
    optional={
        "resources": st.none() | st.fixed_dictionaries({}, optional={"requests": _amounts, "limits": _amounts}),
        "restartPolicy": st.sampled_from(["Always", "OnFailure", None]),
    },
)
_containers = st.none() | st.lists(_container, max_size=3)
_pod = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "uid": st.text(max_size=3),
                "name": st.text(max_size=3),
                "annotations": st.none()
                | st.dictionaries(
                    st.sampled_from(["topowise.io/numa-policy", "volcano.sh/numa-topology-policy"]),
                    st.sampled_from(["none", "restricted", "x"]),
                ),
            },
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": _containers,
                "initContainers": _containers,
                "overhead": _amounts,
                "priority": st.integers(-(2**31), 2**31 - 1) | st.none(),
                "resources": st.none() | st.fixed_dictionaries({}, optional={"requests": _amounts, "limits": _amounts}),
            },
        ),
    }
)
_victims = st.none() | st.dictionaries(
    _names, st.none() | st.fixed_dictionaries({"Pods": st.none() | st.lists(st.fixed_dictionaries({"UID": st.text()}))})
)
_question = st.fixed_dictionaries(
    {"Pod": _pod | _json},
    optional={
        "NodeNames": st.none() | st.lists(_names, max_size=5),
        "Nodes": st.none()
        | st.fixed_dictionaries(
            {"items": st.lists(st.builds(lambda n: {"metadata": {"name": n}}, _names), max_size=3)}
        ),
        "NodeNameToMetaVictims": _victims,
    },
)
_verbs = st.sampled_from(["filter", "prioritize", "preempt", "explain"])


@given(verb=st.sampled_from(["filter", "prioritize", "preempt", "bind", "explain"]), body=st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_bytes(app: http.Application, verb: str, body: bytes) -> None:
    status, answer = call(app, f"/v1/{verb}", body)
    assert status == 200
    json.loads(answer)


@given(verb=_verbs, question=_question | _json)
@settings(max_examples=400, deadline=None)
def test_questions_of_any_shape(app: http.Application, verb: str, question: Any) -> None:
    status, answer = call(app, f"/{verb}", msgspec.json.encode(question))
    assert status == 200
    shown = json.loads(answer)
    if verb == "filter" and not shown["Error"] and question.get("NodeNames") is not None:
        named = {*shown["NodeNames"], *shown["FailedNodes"], *shown["FailedAndUnresolvableNodes"]}
        assert named == set(question["NodeNames"])
    if verb == "prioritize":
        assert all(isinstance(score["Score"], int) and 0 <= score["Score"] <= 10 for score in shown)


@pytest.mark.parametrize(("path", "method", "status"), [("/nothing", "POST", 404), ("/filter", "GET", 405)])
def test_what_is_not_a_verb(app: http.Application, path: str, method: str, status: int) -> None:
    assert call(app, path, b"", method)[0] == status


def test_a_request_that_is_too_large_is_an_error(app: http.Application) -> None:
    status, answer = call(app, "/filter", b" " * ((1 << 20) + 1))
    assert status == 200
    assert "larger than" in json.loads(answer)["Error"]


_DEEP = 50_000


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind", "explain"])
@pytest.mark.parametrize(
    "body",
    [
        b"[" * _DEEP,
        b'{"Pod":' * _DEEP,
        b'{"PodName":' + b"[" * _DEEP + b"]" * _DEEP + b"}",
        b'{"PodName":"a","PodNamespace":"b","PodUID":"c","Node":"n1","x":' + b"[" * _DEEP + b"]" * _DEEP + b"}",
        b'{"Pod":{"metadata":{"annotations":' + b'{"a":' * _DEEP + b"1" + b"}" * _DEEP + b'}},"NodeNames":[]}',
    ],
    ids=["brackets", "pods", "in a name", "in what nobody reads", "in annotations"],
)
def test_however_deep_a_body_is_it_is_refused_without_a_traceback(
    verb: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    service, decisions = Service("TightFit"), Decisions(10, lambda: 0.0)
    app = http.Application(service.served(observer=decisions), http.Metrics(CollectorRegistry()), 1 << 20, Callers(()))
    status, answer = call(app, f"/{verb}", body)
    assert status == 200
    json.loads(answer)
    assert [entry.getMessage() for entry in caplog.records] == ["Request refused"]
    assert caplog.records[0].exc_info is None


def test_a_defect_is_an_answer_and_later_requests_are_no_defects(caplog: pytest.LogCaptureFixture) -> None:
    def broken(body: bytes) -> Reply:
        raise ZeroDivisionError

    def follows(seconds: float) -> None:
        raise ZeroDivisionError

    verbs = {
        "filter": Verb(lambda problem: Reply(problem.encode(), problem=problem), now=broken),
        "bind": Verb(lambda problem: Reply(b""), now=lambda body: Reply(b"{}", follows)),
    }
    app = http.Application(verbs, http.Metrics(CollectorRegistry()), 1 << 20, Callers(()))
    assert call(app, "/filter", b"") == (200, b"the service has a defect, its log says more")
    assert call(app, "/bind", b"") == (200, b"{}")
    assert [entry.getMessage() for entry in caplog.records if entry.exc_info] == [
        "Request cannot be answered, which is a defect",
        "What follows an answer has failed, which is a defect",
    ]


def test_an_amount_that_no_machine_has_is_named(app: http.Application) -> None:
    document = pod("p", "1")
    document["spec"]["containers"][0]["resources"]["limits"]["memory"] = "1Ei"
    _, answer = call(app, "/filter", json.dumps({"Pod": document, "NodeNames": ["n1"]}, default=str).encode())
    assert "memory '1Ei': expected at most 2^53 (8Pi of bytes)" in json.loads(answer)["Error"]
