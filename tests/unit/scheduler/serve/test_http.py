"""The HTTP server answers deep and large bodies, and its own defects; tests/unit/fuzz has all other bodies."""

from __future__ import annotations

import json

import pytest
from prometheus_client import CollectorRegistry

from scheduling import Service, call, counts, pod
from topowise_scheduler.dashboard.decisions import Decisions
from topowise_scheduler.serve.extender import http
from topowise_scheduler.serve.extender.callers import Callers
from topowise_scheduler.serve.extender.replies import Reply, Verb


def application(service: Service) -> http.Application:
    return http.Application(service.served(), http.Metrics(CollectorRegistry()), 1 << 20, Callers(()))


@pytest.fixture(scope="module")
def app() -> http.Application:
    service = Service("TightFit")
    service.report(counts("n1", ("8", "8"), included=()))
    service.report(counts("n2", ("2", "1"), included=(), policy="restricted"))
    service.put(pod("running", "3", node="n1"))
    return application(service)


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
