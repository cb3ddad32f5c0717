"""A watch keeps a node's ResourceSlices current; a cluster without ResourceSlices is no error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from daemons import assert_eventually
from sandbox.apiserver import ApiServer
from topowise.kube.api import Api
from topowise.kube.credentials import Credentials
from topowise.runtime.backoff import Backoff
from topowise_exporter.dra.slices import Device
from topowise_exporter.dra.watch import PATHS, ResourceSlices
from topowise_exporter.kubelet.allocations import Claim

pytestmark = pytest.mark.own_time

NODE_OF = {"numaNode": {"int": 1}}


def resource_slice(name: str, *devices: str, node: str = "n1") -> dict[str, Any]:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    listed = [{"name": device, "attributes": NODE_OF} for device in devices]
    return {
        "metadata": {"name": name},
        "spec": {"driver": "d", "nodeName": node, "pool": pool, "devices": listed},
    }


@asynccontextmanager
async def watching(api: Api) -> AsyncIterator[tuple[ResourceSlices, list[int]]]:
    """The slices of n1, and how many devices there were after each change."""
    changes: list[int] = []
    slices = ResourceSlices(api, "n1", lambda: changes.append(len(slices.devices)), backoff=Backoff(0.2, 0.4))
    task = asyncio.create_task(slices.run())
    try:
        yield slices, changes
    finally:
        task.cancel()
        # A watch that swallowed its cancellation would hang the daemon's end.
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(2):
                await task


async def test_only_slices_of_the_node_are_watched(server: ApiServer, api: Api) -> None:
    server.create("resourceslices.resource.k8s.io", resource_slice("p", "a", "b"))
    server.create("resourceslices.resource.k8s.io", resource_slice("other", "x", node="n2"))
    async with watching(api) as (slices, changes):
        await slices.answered(5)
        assert slices.devices == {Claim("d", "p", "a"): Device(1), Claim("d", "p", "b"): Device(1)}
        server.create("resourceslices.resource.k8s.io", resource_slice("q", "c"))
        await assert_eventually(lambda: changes == [2, 3])
        before = slices.devices
        async with aiohttp.ClientSession() as session:
            # A change without devices, then a change of devices.
            url = f"{server.url}{PATHS[0]}/q"
            headers = {"Content-Type": "application/merge-patch+json"}
            async with session.patch(url, data='{"metadata":{"labels":{"a":"b"}}}', headers=headers) as answer:
                assert answer.status == 200
            async with session.delete(url) as answer:
                assert answer.status == 200
        await assert_eventually(lambda: changes == [2, 3, 2])
        assert before == {**slices.devices, Claim("d", "q", "c"): Device(1)}


@pytest.mark.parametrize("status", [403, 404])
async def test_a_refusal_is_said_once_and_tried_again(
    server: ApiServer, api: Api, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level("INFO")
    server.create("resourceslices.resource.k8s.io", resource_slice("p", "a"))
    server.levers.answer(status, path="*/resourceslices", count=3 * len(PATHS))
    async with watching(api) as (slices, changes):
        await slices.answered(5)
        assert slices.devices == {}
        await assert_eventually(lambda: changes == [1])
    lines = [record for record in caplog.records if record.message.startswith("ResourceSlices cannot be read")]
    assert [record.levelname for record in lines] == ["WARNING" if status == 403 else "INFO"]


async def test_a_right_that_is_withdrawn_takes_the_devices_with_it(server: ApiServer, api: Api) -> None:
    server.create("resourceslices.resource.k8s.io", resource_slice("p", "a"))
    async with watching(api) as (_, changes):
        await assert_eventually(lambda: changes == [1])
        server.levers.answer(403, path="*/resourceslices")
        server.levers.close_watches("*/resourceslices")
        await assert_eventually(lambda: changes == [1, 0])


async def test_an_api_server_that_is_away_leaves_what_is_known(server: ApiServer, api: Api) -> None:
    server.create("resourceslices.resource.k8s.io", resource_slice("p", "a"))
    async with watching(api) as (slices, changes):
        await assert_eventually(lambda: changes == [1])
        server.levers.down()
        await asyncio.sleep(0.5)
        server.levers.up()
        server.create("resourceslices.resource.k8s.io", resource_slice("q", "b"))
        await assert_eventually(lambda: len(slices.devices) == 2)
        assert changes == [1, 2]


async def test_waiting_for_a_silent_server_ends_at_the_timeout(server: ApiServer, api: Api) -> None:
    server.levers.down()
    async with watching(api) as (slices, _):
        async with asyncio.timeout(2):
            await slices.answered(0.1)
        assert slices.devices == {}


async def test_an_older_version_is_read_where_the_newer_are_not_served() -> None:
    async def listed(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        if request.path != PATHS[2]:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if "watch" in request.query:
            stream = web.StreamResponse()
            await stream.prepare(request)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(5)
            return stream
        older = resource_slice("p", "a")
        older["spec"]["devices"] = [{"name": "a", "basic": {"attributes": NODE_OF}}]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [older]})

    async def nobody(renew: bool) -> str:
        return ""

    paths: list[str] = []
    app = web.Application()
    app.router.add_get("/{path:.*}", listed)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with (
            Api(Credentials(f"http://127.0.0.1:{port}", None, nobody), "test", timeout=2) as api,
            watching(api) as (slices, _),
        ):
            await slices.answered(5)
            assert slices.devices == {Claim("d", "p", "a"): Device(1)}
        assert tuple(paths[:3]) == PATHS
    finally:
        await runner.cleanup()
