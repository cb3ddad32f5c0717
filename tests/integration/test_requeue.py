"""Requeueing pods with an API server that refuses or fails."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_objects import PODS, create_pod, running
from daemons import assert_eventually
from sandbox.apiserver import ApiServer
from scheduling import WAITS, Service, counts, full, pod
from topowise.kube.api import Api
from topowise_scheduler.controllers.requeue import REQUEUED_ANNOTATION, Requeuer

pytestmark = pytest.mark.own_time


@pytest.fixture
def service() -> Service:
    return full()


@pytest.fixture
async def requeuer(api: Api, service: Service) -> AsyncIterator[Requeuer]:
    """A running requeuer."""
    requeuer = Requeuer(api, service.ledger, service.answers.fits, interval=0.01, per_second=100.0)
    async with running(requeuer.run()):
        yield requeuer


def put(server: ApiServer, service: Service, name: str, cpu: str = "2") -> None:
    """Creates a waiting pod on the API server and in the ledger."""
    created = create_pod(server, name, cpu)
    service.put({**pod(name, cpu, conditions=WAITS), "metadata": created["metadata"]})


def free(service: Service) -> None:
    """Frees the node's capacity."""
    service.ledger.drop_pod("uid-other")
    service.report(counts("n1", "8", included=(), version="2"))


async def requeued(api: Api, name: str) -> bool:
    pod: dict[str, Any] = json.loads(await api.request("GET", f"{PODS}/{name}"))
    return REQUEUED_ANNOTATION in (pod["metadata"].get("annotations") or {})


@pytest.mark.usefixtures("requeuer")
async def test_an_invalid_name_requeues_no_other_pod(server: ApiServer, api: Api, service: Service) -> None:
    created = create_pod(server, "a")
    service.put({**pod("a", "3", conditions=WAITS), "metadata": {**created["metadata"], "name": "a?dryRun=All"}})
    put(server, service, "b")
    free(service)
    await assert_eventually(lambda: requeued(api, "b"))
    paths = {entry.request.path for entry in server.log() if entry.request.method == "PATCH"}
    assert paths == {f"{PODS}/a?dryRun=All/status", f"{PODS}/b/status"}
    assert not await requeued(api, "a")


@pytest.mark.usefixtures("requeuer")
async def test_a_pod_that_a_webhook_refuses_does_not_delay_the_next_pods(
    server: ApiServer, api: Api, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    # Each pod has its own shape; otherwise the node would be for a single pod.
    for number, name in enumerate(("first", "second", "third")):
        put(server, service, name, str(number + 1))
    refusal = server.levers.answer(403, method="PATCH", path=f"{PODS}/second/status")
    free(service)
    for name in ("first", "third"):
        await assert_eventually(lambda name=name: requeued(api, name))
    await assert_eventually(lambda: refusal.hits > 0)
    assert not await requeued(api, "second")
    assert [record.message for record in caplog.records].count("Cannot requeue a pod") == 1


@pytest.mark.usefixtures("requeuer")
@pytest.mark.parametrize("status", [401, 429, 500])
async def test_after_an_api_servers_own_trouble_all_are_requeued_in_the_end(
    server: ApiServer, api: Api, service: Service, status: int
) -> None:
    put(server, service, "a", "1")
    put(server, service, "b", "2")
    trouble = server.levers.answer(status, method="PATCH", retry_after=0, count=1)
    free(service)
    for name in ("a", "b"):
        await assert_eventually(lambda name=name: requeued(api, name))
    assert trouble.hits == 1


@pytest.mark.usefixtures("requeuer")
async def test_a_pod_that_is_gone_is_not_waited_for(
    server: ApiServer, api: Api, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    put(server, service, "a", "1")
    await api.request("DELETE", f"{PODS}/a", query={"gracePeriodSeconds": "0"})
    assert len(service.ledger.waiting) == 1
    free(service)
    await assert_eventually(lambda: not service.ledger.waiting)
    assert caplog.messages == []


@pytest.mark.usefixtures("requeuer")
async def test_a_pod_recreated_under_its_name_is_another_pod(
    server: ApiServer, api: Api, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    put(server, service, "a", "1")
    await api.request("DELETE", f"{PODS}/a", query={"gracePeriodSeconds": "0"})
    create_pod(server, "a", "1")
    free(service)
    await assert_eventually(lambda: not service.ledger.waiting)
    assert caplog.messages == []
    assert not await requeued(api, "a")
