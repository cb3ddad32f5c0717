"""The bind verb with an API server that refuses, fails or is slow: its answers, and which bookings stay."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from api_objects import create_pod
from daemons import assert_eventually
from sandbox.apiserver import ApiServer
from sandbox.apiserver.levers import Delay
from scheduling import Service, counts, pod
from topowise import pods
from topowise.kube.api import Api
from topowise_scheduler.serve.extender.binding import Binder
from topowise_scheduler.serve.extender.replies import BadRequestError

pytestmark = pytest.mark.own_time

BINDINGS = "*/binding"


@pytest.fixture
def service() -> Service:
    service = Service()
    for name in ("n1", "n2"):
        service.report(counts(name, "8", included=()))
    return service


@pytest.fixture
def binder(api: Api, service: Service) -> Binder:
    return Binder(api, service.ledger, service.records, lambda: None)


async def bind(binder: Binder, pod: dict[str, Any], node: str = "n1") -> str:
    """Returns the error text; "" if the pod is bound."""
    meta = pod["metadata"]
    args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
    return str(json.loads((await binder.bind(json.dumps(args).encode())).body)["Error"])


async def test_before_the_first_sync_nothing_is_bound(server: ApiServer, api: Api, service: Service) -> None:
    binder = Binder(api, service.ledger, service.records, lambda: "not yet listed: pods")
    rule = server.levers.pull(Delay(0), path=BINDINGS)
    assert await bind(binder, create_pod(server, "a", "8")) == "not ready: not yet listed: pods"
    assert rule.hits == 0


@pytest.mark.parametrize("body", [b"", b"[]", b'{"PodName": 1}', b"\xff", b'{"PodName":' * 2000])
async def test_what_is_no_bind_is_named(binder: Binder, body: bytes) -> None:
    with pytest.raises(BadRequestError, match="ExtenderBindingArgs"):
        await binder.bind(body)


async def test_a_pod_that_cannot_be_counted_is_not_bound(server: ApiServer, binder: Binder) -> None:
    assert "pod cannot be placed" in await bind(binder, create_pod(server, "a", "8", "1Ei"))


async def test_a_pod_that_cannot_be_read_is_not_bound(server: ApiServer, binder: Binder) -> None:
    pod = create_pod(server, "a", "8")
    server.levers.answer(503, path="*/pods/a", count=1)
    assert (await bind(binder, pod)).startswith("pod cannot be read: ")
    assert await bind(binder, pod) == ""


@pytest.mark.parametrize(
    ("name", "namespace", "problem"),
    [
        ("a?dryRun=All", "default", 'pods "a?dryRun=All" not found'),
        ("a#", "default", 'pods "a#" not found'),
        ("a/status", "default", "'a/status' is not a valid name"),
        ("..", "default", "'..' is not a valid name"),
        ("a", ".", "'.' is not a valid name"),
        ("a", "", "'' is not a valid name"),
    ],
)
async def test_an_invalid_name_reaches_no_other_path(
    server: ApiServer, binder: Binder, service: Service, name: str, namespace: str, problem: str
) -> None:
    uid = create_pod(server, "a", "8")["metadata"]["uid"]
    question = {"metadata": {"name": name, "namespace": namespace, "uid": uid}}
    said = await bind(binder, question)
    assert said.startswith("pod cannot be read: ")
    assert problem in said
    # A pod that filter has answered for is bound without a read.
    service.ledger.remember(service.records.decode(msgspec.json.encode({**pod("a", "2"), **question})))
    said = await bind(binder, question)
    assert said.startswith("binding failed: ")
    assert problem in said
    assert service.free("n1") == [8]


@pytest.mark.parametrize(
    ("status", "is_kept"), [(403, False), (404, False), (409, False), (429, False), (500, True), (503, True)]
)
async def test_a_booking_stays_only_while_the_result_of_the_bind_is_unknown(
    server: ApiServer, binder: Binder, service: Service, status: int, is_kept: bool
) -> None:
    server.levers.answer(status, path=BINDINGS, count=1)
    answer = await bind(binder, create_pod(server, "a", "8"))
    assert answer.startswith("binding failed: ")
    assert f"{status}" in answer
    assert (service.fits(pod("b", "8"), "n1") == []) is is_kept
    service.clock.now += 31
    service.ledger.tick()
    assert service.fits(pod("b", "8"), "n1") == ["n1"]


async def test_a_cancelled_bind_keeps_its_booking(server: ApiServer, binder: Binder, service: Service) -> None:
    rule = server.levers.pull(Delay(5), path=BINDINGS)
    task = asyncio.create_task(bind(binder, create_pod(server, "a", "8")))
    await assert_eventually(lambda: rule.hits == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert service.fits(pod("b", "8"), "n1", "n2") == ["n2"]


async def test_binds_to_one_node_wait_for_each_other_but_not_for_ever(server: ApiServer, binder: Binder) -> None:
    rule = server.levers.pull(Delay(1), path="*/a/binding")
    first = asyncio.create_task(bind(binder, create_pod(server, "a", "2")))
    await assert_eventually(lambda: rule.hits == 1)
    assert await bind(binder, create_pod(server, "c", "2"), "n2") == ""
    assert await bind(binder, create_pod(server, "b", "2")) == "another bind to n1 takes too long"
    assert await first == ""


async def test_no_error_reveals_a_uid(server: ApiServer, binder: Binder, service: Service) -> None:
    pod = create_pod(server, "a", "8")
    guessed = {**pod, "metadata": {**pod["metadata"], "uid": "01234567-89ab-cdef-0123-456789abcdef"}}
    for is_known in (False, True):
        if is_known:
            # filter has stored the pod, so the API server compares the UIDs.
            question = pods.decode(msgspec.json.encode({**guessed, "spec": pod["spec"]}))
            service.answers.question(question, ["n1"])
        error = await bind(binder, guessed)
        assert "409" in error
        assert is_known or "is another one" in error
        assert pod["metadata"]["uid"] not in error
