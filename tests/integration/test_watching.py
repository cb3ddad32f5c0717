"""The service's watches fill its ledger in every order of the collections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from api_objects import publish
from daemons import assert_eventually
from sandbox.apiserver import ApiServer
from scheduling import Service, counts
from topowise import nrt
from topowise.kube.api import Api
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.watch import BUDGETS_PATH, reflectors

pytestmark = pytest.mark.own_time

NODES = "/api/v1/nodes"


@asynccontextmanager
async def watching(api: Api, service: Service, budgets: Budgets) -> AsyncIterator[dict[str, Any]]:
    """The service's watches by the names of their collections."""
    sources = reflectors(api, service.ledger, service.records, budgets, service.nodes)
    tasks = [asyncio.create_task(source.run()) for source in sources]
    try:
        yield {source.name: source for source in sources}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_reports_count_from_the_moment_the_pods_are_listed_as_they_are_by_then(
    server: ApiServer, api: Api
) -> None:
    for name in ("n1", "n2"):
        await publish(api, counts(name, "8", included=()))
    service = Service()
    lever = server.levers.answer(503, method="list", path="/api/v1/pods")
    async with watching(api, service, Budgets()) as sources:
        await assert_eventually(lambda: sources[nrt.PLURAL].synced)
        await publish(api, counts("n3", "8", included=()))
        await publish(api, counts("n1", "5", included=()))
        await api.request("DELETE", f"{nrt.PATH}/n2")
        await assert_eventually(lambda: lever.hits > 0)
        assert service.ledger.node_states.reported() == []
        server.levers.release(lever.id)
        await assert_eventually(lambda: sorted(service.ledger.node_states.reported()) == ["n1", "n3"])
        assert service.free("n1") == [5]


async def test_what_has_gone_while_nothing_was_heard_is_gone_with_the_next_list(server: ApiServer, api: Api) -> None:
    for name in ("n1", "n2"):
        server.create("nodes", {"metadata": {"name": name}})
        await publish(api, counts(name, "8", included=()))
    service = Service()
    async with watching(api, service, Budgets()):
        await assert_eventually(lambda: sorted(service.ledger.node_states.reported()) == ["n1", "n2"])
        await assert_eventually(lambda: service.ledger.reports.nodes == {"n1", "n2"})
        deaf = server.levers.answer(503, method="watch")
        server.levers.close_watches()
        for path in (nrt.PATH, NODES):
            await api.request("DELETE", f"{path}/n1")
        server.levers.expire_window()
        server.levers.release(deaf.id)
        await assert_eventually(lambda: service.ledger.node_states.reported() == ["n2"])
        await assert_eventually(lambda: service.ledger.reports.nodes == {"n2"})


async def test_nodes_and_budgets_come_and_go_by_events(server: ApiServer, api: Api) -> None:
    service, budgets = Service(), Budgets()
    async with watching(api, service, budgets) as sources:
        await assert_eventually(lambda: all(source.synced for source in sources.values()))
        server.create("nodes", {"metadata": {"name": "n1"}})
        server.create(
            "poddisruptionbudgets.policy",
            {"metadata": {"name": "one", "namespace": "default"}, "spec": {"maxUnavailable": 1}},
        )
        await assert_eventually(lambda: service.ledger.reports.nodes == {"n1"})
        await assert_eventually(lambda: len(budgets) == 1 and budgets.allowed("default/one") == 0)
        await api.request("DELETE", f"{NODES}/n1")
        await api.request("DELETE", BUDGETS_PATH.replace("v1/", "v1/namespaces/default/") + "/one")
        await assert_eventually(lambda: service.ledger.reports.nodes == set())
        await assert_eventually(lambda: len(budgets) == 0)
