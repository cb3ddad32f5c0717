"""The HTTP face under anything at all: 200 with valid JSON, and every node of a readable question answered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from scheduling import Service, counts, pod
from topowise_scheduler.extender import http


def application(service: Service) -> http.Application:
    return http.Application(service.served(), http.Metrics(CollectorRegistry()), 1 << 20)


def call(app: http.Application, path: str, body: bytes, method: str = "POST", query: bytes = b"") -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app({"type": "http", "path": path, "method": method, "query_string": query}, receive, send))
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
        assert all(isinstance(one["Score"], int) and 0 <= one["Score"] <= 10 for one in shown)


@pytest.mark.parametrize(("path", "method", "status"), [("/nothing", "POST", 404), ("/filter", "GET", 405)])
def test_what_is_not_a_verb(app: http.Application, path: str, method: str, status: int) -> None:
    assert call(app, path, b"", method)[0] == status


def test_a_request_that_is_too_large_is_an_error(app: http.Application) -> None:
    status, answer = call(app, "/filter", b" " * ((1 << 20) + 1))
    assert status == 200
    assert "larger than" in json.loads(answer)["Error"]
