"""The server misbehaving on demand, and counting what it was asked."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from sandbox.apiserver import ApiServer
from sandbox.apiserver.client import CONFIGMAPS, NODES, NRT, PODS, Client, configmap, nrt
from sandbox.apiserver.levers import Delay, Drop


async def test_a_number_of_requests_is_answered_with_an_error(server: ApiServer, client: Client) -> None:
    rule = server.levers.answer(429, path="*/configmaps", method="POST", retry_after=7, count=2)
    for _ in range(2):
        reply = await client.call("POST", CONFIGMAPS, configmap("a"))
        assert (reply.status, reply.headers["Retry-After"]) == (429, "7")
        assert (reply.body["kind"], reply.body["reason"]) == ("Status", "TooManyRequests")
        assert reply.body["details"] == {"retryAfterSeconds": 7}
    assert (await client.call("GET", CONFIGMAPS)).status == 200
    assert (await client.call("POST", CONFIGMAPS, configmap("a"))).status == 201
    assert (rule.hits, server.levers.rules()) == (2, [])


async def test_a_rule_can_be_for_a_single_client(server: ApiServer, client: Client) -> None:
    server.levers.answer(500, user_agent="topowise-exporter/*")
    assert (await client.call("GET", NODES)).status == 200
    async with client.session.get(server.url + NODES, headers={"User-Agent": "topowise-exporter/0.1"}) as reply:
        assert reply.status == 500


async def test_a_late_answer_comes_after_the_write(server: ApiServer, client: Client) -> None:
    server.levers.pull(Delay(60, handled=True), method="POST")
    async with client.watch(CONFIGMAPS) as watch:
        late = asyncio.create_task(client.call("POST", CONFIGMAPS, configmap("a")))
        assert (await watch.about("a"))[0] == "ADDED"
        assert not late.done()
        late.cancel()


async def test_a_dropped_request_has_no_effect(server: ApiServer, client: Client) -> None:
    server.levers.pull(Drop(), count=1)
    with pytest.raises(aiohttp.ClientError):
        await client.call("POST", CONFIGMAPS, configmap("a"))
    assert (await client.call("GET", f"{CONFIGMAPS}/a")).status == 404


async def test_a_lost_answer_leaves_the_write_done(server: ApiServer, client: Client) -> None:
    server.levers.pull(Drop(handled=True), count=1)
    with pytest.raises(aiohttp.ClientError):
        await client.call("POST", CONFIGMAPS, configmap("a"))
    assert (await client.call("GET", f"{CONFIGMAPS}/a")).status == 200
    assert [entry.status for entry in server.log()][-2:] == [0, 200]


async def test_a_stalled_watch_is_silent_and_then_goes_on(server: ApiServer, client: Client) -> None:
    async with client.watch(NODES) as watch:
        server.create("nodes", {"metadata": {"name": "a"}})
        assert (await watch.about("a"))[0] == "ADDED"
        rule = server.levers.stall_watches("*/nodes")
        server.create("nodes", {"metadata": {"name": "b"}})
        waiting = asyncio.ensure_future(watch.about("b"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        server.levers.release(rule.id)
        assert (await waiting)[0] == "ADDED"


async def test_a_stalled_watch_outlives_its_timeout_and_can_be_cut(server: ApiServer, client: Client) -> None:
    server.levers.stall_watches()
    async with client.watch(NRT, timeoutSeconds=1) as watch:
        with pytest.raises(TimeoutError):
            await watch.next(1.3)
    async with client.watch(NRT) as watch:
        assert server.levers.close_watches(path=NRT, abort=True) >= 1
        with pytest.raises(aiohttp.ClientError):
            await watch.next()


async def test_an_expired_window_makes_a_resumed_watch_end_in_410(server: ApiServer, client: Client) -> None:
    version = (await client.ok("GET", NODES))["metadata"]["resourceVersion"]
    server.levers.expire_window()
    async with client.watch(NODES, resourceVersion=version) as watch:
        assert watch.status == 200
        (event,) = await watch.rest()
    assert (event["type"], event["object"]["kind"]) == ("ERROR", "Status")
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    fresh = (await client.ok("GET", NODES))["metadata"]["resourceVersion"]
    async with client.watch(NODES, resourceVersion=fresh, timeoutSeconds=1) as watch:
        server.create("nodes", {"metadata": {"name": "a"}})
        assert (await watch.about("a"))[0] == "ADDED"


async def test_a_server_that_is_down_resets_everything_until_it_is_up(server: ApiServer, client: Client) -> None:
    async with client.watch(NODES) as watch:
        server.levers.down()
        with pytest.raises(aiohttp.ClientError):
            await watch.next()
    with pytest.raises(aiohttp.ClientError):
        await client.call("GET", NODES)
    server.levers.up()
    assert (await client.call("GET", NODES)).status == 200


async def test_requests_are_counted_by_verb_resource_and_user_agent(server: ApiServer, client: Client) -> None:
    headers = {"User-Agent": "probe/1"}
    for path in (NODES, NODES, PODS):
        async with client.session.get(server.url + path, headers=headers):
            pass
    await client.call("POST", NRT, nrt("a"))
    counts = server.requests()
    assert counts["list", "nodes", "probe/1"] == 2
    assert counts["list", "pods", "probe/1"] == 1
    assert (server.writes(), server.writes(user_agent="probe/*")) == (1, 0)
    assert server.journal.total(resource="nodes", verb="list") == 2
    last = server.log()[-1]
    assert (last.request.verb, last.request.resource, last.status) == ("create", "noderesourcetopologies", 201)
    server.journal.clear()
    assert server.writes() == 0
