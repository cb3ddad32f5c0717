"""The NodeResourceTopology CRD comes later, or is deleted under the daemons and comes back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from daemons import CRD, Start, assert_eventually
from faults import assert_said_once
from faults.site import LONG_S, Site, pod
from sandbox.apiserver import ApiServer, documents
from scheduler_process import Service
from scheduling import NODE_STATUS

CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION: Final[dict[str, Any]] = next(iter(documents.load_all(CRD)))
NAME: Final = DEFINITION["metadata"]["name"]


async def undefine(place: Site) -> None:
    async with place.session.delete(f"{place.server.url}{CRDS}/{NAME}") as response:
        assert response.status == 200, await response.text()
    await assert_eventually(lambda: is_gone(place))


async def define(place: Site) -> None:
    async with place.session.post(f"{place.server.url}{CRDS}", json=DEFINITION) as response:
        assert response.status == 201, await response.text()


async def is_gone(place: Site) -> bool:
    url = f"{place.server.url}/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
    async with place.session.get(url) as response:
        return response.status == 404


async def assert_still_refuses(place: Site) -> None:
    """The free capacity of all nodes is still known: a pod that does not fit is refused."""
    answer = await place.service.ask("filter", pod("large", 7), ["n1", "n2"], place.session)
    assert answer["NodeNames"] == [], answer
    assert await place.takes("n1", 2) and await place.takes("n2", 2)


async def test_a_definition_that_is_deleted_and_comes_back(place: Site) -> None:
    lines = place.log_lengths()
    await undefine(place)
    began = time.monotonic()
    await assert_eventually(lambda: place.exporter.lines("CRD is not installed"), within=LONG_S)
    await asyncio.sleep(5)
    # All reports are deleted: the service continues from its known state, and logs so.
    await assert_still_refuses(place)
    assert (await place.metrics())["unconfirmed_nodes"] == 2
    place.bound("q", "n2", 2)
    await place.has({"n1": 4, "n2": 4})
    assert place.proxy.count(began, "*/noderesourcetopologies*") <= 40
    place.kubelet.give("p", 1)
    place.bound("p", "n1", 1)
    await define(place)
    await place.publishes(2)
    place.report("n2", 5)
    await place.has({"n1": 4, "n2": 3})

    async def is_confirmed() -> bool:
        return (await place.metrics())["unconfirmed_nodes"] == 0

    await assert_eventually(is_confirmed, within=LONG_S)
    place.assert_alive()
    place.assert_said_once(lines)


async def test_a_definition_that_is_installed_after_the_daemons(
    server: ApiServer, start: Start, config: dict[str, Any], tmp_path: Path
) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.delete(f"{server.url}{CRDS}/{NAME}") as response:
            assert response.status == 200, await response.text()
        server.create("nodes", {"metadata": {"name": "n1"}, "status": NODE_STATUS})
        service = Service(server, tmp_path)
        exporter = await start("topowise_exporter", "run", config=config)
        scheduler = await start("topowise_scheduler", "serve", config=service.config)
        await assert_eventually(service.is_ready, within=LONG_S)
        await assert_eventually(lambda: exporter.lines("CRD is not installed"), within=LONG_S)
        await assert_eventually(lambda: scheduler.lines("Cannot list and watch"), within=LONG_S)
        await asyncio.sleep(5)
        # As without topowise.
        large = await service.ask("filter", pod("large", 5), ["n1"], session)
        assert large["NodeNames"] == ["n1"]
        async with session.post(f"{server.url}{CRDS}", json=DEFINITION) as response:
            assert response.status == 201, await response.text()

        async def is_refused() -> bool:
            answer = await service.ask("filter", pod("large", 5), ["n1"], session)
            return bool(answer["NodeNames"] == [])

        await assert_eventually(is_refused, within=LONG_S)
        for daemon in (exporter, scheduler):
            assert daemon.process.returncode is None
            assert_said_once(daemon, at_most=2)
