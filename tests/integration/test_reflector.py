"""The reflector stays equal to its collection under every API server fault."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from daemons import CRD, assert_eventually, plain
from faults.proxy import Fault, FaultProxy
from sandbox import simulated_time
from sandbox.apiserver import ApiServer
from sandbox.apiserver.levers import Rule, Stall
from topowise import documents, nrt, pods
from topowise.errors import ApiError
from topowise.kube import reflector as module
from topowise.kube.api import Api
from topowise.kube.credentials import Credentials
from topowise.kube.reflector import EventType, Reflector, _event
from topowise.runtime.backoff import Backoff

pytestmark = pytest.mark.own_time

PODS = "/api/v1/pods"


class Copy:
    """A consumer that stores every object it receives."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.events: list[tuple[EventType, str]] = []
        self.replaced = 0

    def replace(self, items: list[Any]) -> None:
        self.names = {item.metadata.name for item in items}
        self.replaced += 1

    def apply(self, event: EventType, item: Any) -> None:
        self.events.append((event, item.metadata.name))
        (self.names.discard if event == "DELETED" else self.names.add)(item.metadata.name)


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


@asynccontextmanager
async def running(
    api: Api, path: str = PODS, decode: Callable[..., Any] = pods.decode, **options: Any
) -> AsyncIterator[tuple[Reflector[Any], Copy]]:
    copy = Copy()
    reflector = Reflector(api, path, decode, copy, backoff=Backoff(0.02, 0.2), **options)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector, copy
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_it_lists_what_is_there_and_follows_what_changes(server: ApiServer, api: Api) -> None:
    server.create("pods", pod("a"))
    async with running(api) as (reflector, copy):
        await assert_eventually(lambda: reflector.synced)
        assert copy.names == {"a"}
        server.create("pods", pod("b"))
        await assert_eventually(lambda: copy.names == {"a", "b"})
        await api.request("DELETE", "/api/v1/namespaces/default/pods/a")
        await assert_eventually(lambda: copy.names == {"b"})
    assert reflector.lists == 1


async def test_a_long_list_comes_in_pages(server: ApiServer, api: Api) -> None:
    for number in range(1201):
        server.create("pods", pod(f"p{number}"))
    async with running(api) as (reflector, copy):
        await assert_eventually(lambda: reflector.synced)
        assert len(copy.names) == 1201
    lists = [entry for entry in server.log() if entry.request.verb == "list"]
    # The first page is small, as the size of the objects is unknown.
    assert len(lists) == 4


async def test_large_objects_come_in_smaller_pages(server: ApiServer, api: Api) -> None:
    for number in range(120):
        server.create(
            "pods", {**pod(f"p{number}"), "metadata": {"name": f"p{number}", "annotations": {"x": "y" * 100_000}}}
        )
    async with running(api) as (reflector, copy):
        await assert_eventually(lambda: reflector.synced)
        assert len(copy.names) == 120
    queries = [entry.query for entry in server.log() if entry.request.verb == "list"]
    assert [query.partition("&")[0] for query in queries] == [
        "limit=50",
        "limit=20",
        "limit=20",
        "limit=20",
        "limit=20",
    ]


async def test_a_closed_watch_is_resumed_without_a_list_and_without_a_gap(server: ApiServer, api: Api) -> None:
    async with running(api) as (reflector, copy):
        await assert_eventually(lambda: reflector.synced)
        for number, abort in enumerate((False, True, False, True)):
            await assert_eventually(lambda: server.levers.close_watches(abort=abort))  # noqa: B023
            server.create("pods", pod(f"p{number}"))
            await assert_eventually(lambda: f"p{number}" in copy.names)  # noqa: B023
        assert reflector.lists == 1


async def test_an_outage_is_outlasted_and_nothing_is_lost(server: ApiServer, api: Api) -> None:
    async with running(api) as (reflector, copy):
        await assert_eventually(lambda: reflector.synced)
        server.levers.down()
        server.create("pods", pod("meanwhile"))
        await asyncio.sleep(0.3)
        assert copy.names == set()
        server.levers.up()
        await assert_eventually(lambda: copy.names == {"meanwhile"})
    assert reflector.failures > 0
    assert reflector.lists == 1


async def test_lost_history_leads_to_a_new_list(server: ApiServer, api: Api) -> None:
    async with running(api) as (reflector, copy):
        await assert_eventually(lambda: reflector.synced)
        server.create("pods", pod("a"))
        await assert_eventually(lambda: copy.names == {"a"})
        await api_delete_behind_its_back(server, "a", server.levers.down())
        server.levers.expire_window()
        server.levers.up()
        await assert_eventually(lambda: reflector.lists == 2)
        assert copy.names == set()


async def api_delete_behind_its_back(server: ApiServer, name: str, outage: Rule) -> None:
    """Deletes during the client's outage: lifts the outage for a single request of another user agent."""
    server.levers.release(outage.id)
    silenced = server.levers.answer(503, user_agent="test/*")
    url = f"{server.url}/api/v1/namespaces/default/pods/{name}"
    async with aiohttp.ClientSession() as session, session.delete(url) as response:
        assert response.status == 200
    server.levers.release(silenced.id)


async def test_a_peer_that_falls_silent_is_left_in_time(server: ApiServer, api: Api) -> None:
    async with running(api, silence=1.0) as (reflector, copy):
        await assert_eventually(lambda: reflector.synced)
        stalled = server.levers.pull(Stall(), method="watch")
        server.levers.close_watches()
        await assert_eventually(lambda: stalled.hits == 1)
        server.create("pods", pod("unseen"))
        server.levers.release(stalled.id)
        await assert_eventually(lambda: copy.names == {"unseen"}, within=5)
        assert reflector.lists == 1


async def test_bookmarks_keep_a_quiet_watch_alive(server: ApiServer, api: Api) -> None:
    async with running(api, silence=1.5) as (reflector, _):
        await assert_eventually(lambda: reflector.synced)
        await asyncio.sleep(2.2)
    watches = [entry for entry in server.log() if entry.request.verb == "watch"]
    assert len(watches) == 1


async def test_retry_after_is_honoured(server: ApiServer, api: Api) -> None:
    server.levers.answer(429, retry_after=1, method="list", count=1)
    async with running(api) as (reflector, _):
        await asyncio.sleep(0.7)
        assert not reflector.synced
        await assert_eventually(lambda: reflector.synced)


@pytest.mark.parametrize("status", [403, 404, 500, 503])
async def test_a_refused_list_is_tried_again_until_it_works(server: ApiServer, api: Api, status: int) -> None:
    server.levers.answer(status, method="list", count=3)
    async with running(api) as (reflector, _):
        await assert_eventually(lambda: reflector.synced)
    assert reflector.failures == 3


async def test_an_object_that_does_not_decode_is_left_out_alone(server: ApiServer, api: Api) -> None:
    class Strict(msgspec.Struct):
        metadata: pods.Metadata

        def __post_init__(self) -> None:
            if self.metadata.name == "bad":
                raise ValueError("bad name")

    server.create("pods", pod("bad"))
    server.create("pods", pod("good"))
    async with running(api, decode=msgspec.json.Decoder(Strict).decode) as (reflector, copy):
        await assert_eventually(lambda: reflector.synced)
        server.create("pods", pod("better"))
        await assert_eventually(lambda: copy.names == {"good", "better"})


async def test_a_collection_whose_crd_comes_later_counts_as_empty_until_then() -> None:
    async with (
        ApiServer() as bare,
        Api(plain(bare), "test") as client,
        running(client, nrt.PATH, nrt.decode, missing_is_empty=True) as (reflector, copy),
    ):
        await assert_eventually(lambda: reflector.synced)
        bare.install_crds(CRD)
        bare.create("noderesourcetopologies.topology.node.k8s.io", {"metadata": {"name": "n"}, "zones": []})
        await assert_eventually(lambda: copy.names == {"n"})


@pytest.mark.parametrize("version", ["\u00b2", "9" * 5000, "1_0", " 7"])
async def test_a_version_that_is_no_number_ends_nothing(version: str) -> None:
    """Versions of unusual servers: `str.isdigit` is true for the first two, and `int` accepts neither."""
    first, second = ({**pod(name), "metadata": {"name": name, "resourceVersion": version}} for name in "ab")
    listed = {"metadata": {"resourceVersion": version}, "items": [first]}
    event = {"type": "ADDED", "object": second}

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response(listed)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(msgspec.json.encode(event) + b"\n")
        await asyncio.sleep(5)
        return response

    application = web.Application()
    application.router.add_get(PODS, answer)
    async with (
        TestServer(application) as test_server,
        Api(Credentials(str(test_server.make_url("")).rstrip("/"), None, _nobody), "test") as api,
        running(api) as (reflector, copy),
    ):
        await assert_eventually(lambda: copy.names == {"a", "b"})
        assert reflector.lists == 1


async def _nobody(renew: bool) -> str:
    return ""


async def test_requests_fail_with_the_request_and_the_servers_words(api: Api) -> None:
    with pytest.raises(ApiError) as caught:
        await api.request("GET", "/api/v1/namespaces/default/pods/none")
    assert caught.value.status == 404
    assert caught.value.reason == "NotFound"
    assert "GET /api/v1/namespaces/default/pods/none" in str(caught.value)
    assert '"none" not found' in str(caught.value)


async def test_a_request_that_is_not_answered_is_given_up(server: ApiServer, api: Api) -> None:
    server.levers.pull(Stall(), path=PODS)
    with pytest.raises(ApiError) as caught:
        await api.request("GET", PODS, timeout=0.3)
    assert caught.value.status == 0


async def test_an_object_that_is_deleted_when_it_does_not_decode_any_more_is_gone(server: ApiServer, api: Api) -> None:
    def decode(raw: bytes | msgspec.Raw) -> pods.Pod:
        read = pods.decode(raw)
        if (read.metadata.labels or {}).get("odd"):
            raise ValueError("odd")
        return read

    server.create("pods", pod("a"))
    async with running(api, decode=decode) as (_, copy):
        await assert_eventually(lambda: copy.names == {"a"})
        path = "/api/v1/namespaces/default/pods/a"
        body = b'{"metadata":{"labels":{"odd":"yes"}}}'
        await api.request("PATCH", path, body=body, content_type="application/merge-patch+json")
        await api.request("DELETE", path)
        await assert_eventually(lambda: copy.names == set())


async def test_a_cancellation_in_the_turn_of_a_timeout_is_not_lost(server: ApiServer, api: Api) -> None:
    server.levers.pull(Stall(), path=PODS)
    request = asyncio.create_task(api.request("GET", PODS, timeout=0.05))
    asyncio.get_running_loop().call_later(0.06, request.cancel)
    await asyncio.sleep(0.02)
    # Both timers are due in the next turn of the loop.
    simulated_time.skip(0.1)
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_an_object_on_which_its_reader_or_consumer_stumbles_is_left_out(server: ApiServer, api: Api) -> None:
    def decode(raw: bytes | msgspec.Raw) -> pods.Pod:
        read = pods.decode(raw)
        if read.metadata.name == "odd":
            raise KeyError("odd")
        return read

    server.create("pods", pod("odd"))
    server.create("pods", pod("a"))
    async with running(api, decode=decode) as (reflector, copy):
        await assert_eventually(lambda: copy.names == {"a"})
        whole, copy.apply = copy.apply, lambda event, item: 1 // 0  # type: ignore[method-assign, assignment, return-value]
        server.create("pods", pod("b"))
        await asyncio.sleep(0.2)
        copy.apply = whole  # type: ignore[method-assign]
        server.create("pods", pod("c"))
        await assert_eventually(lambda: copy.names == {"a", "c"})
        assert reflector.lists == 1


# Replayed past events. An API server never sends such events by intent; caches and proxies before it do, when they are
# rebuilt or fail over.


class Again:
    """A proxy edit: repeats all earlier events after every event."""

    def __init__(self) -> None:
        self.past: list[bytes] = []

    def __call__(self, line: bytes) -> list[bytes]:
        if b'"BOOKMARK"' in line:
            return [line]
        shown = [line, *self.past]
        self.past.append(line)
        return shown


@asynccontextmanager
async def replaying(server: ApiServer) -> AsyncIterator[tuple[FaultProxy, Reflector[Any], Copy]]:
    async def nobody(renew: bool) -> str:
        return ""

    async with FaultProxy(server.url) as proxy, Api(Credentials(proxy.url, None, nobody), "test", timeout=2) as behind:
        proxy.spoil(Fault(watch=True, edit=Again()))
        async with running(behind) as (reflector, copy):
            await assert_eventually(lambda: reflector.synced)
            yield proxy, reflector, copy


async def test_what_is_deleted_stays_deleted_though_its_past_comes_again(server: ApiServer, api: Api) -> None:
    async with replaying(server) as (_, _, copy):
        for name in ("a", "b"):
            server.create("pods", pod(name))
        await assert_eventually(lambda: copy.names == {"a", "b"})
        await api.request("DELETE", "/api/v1/namespaces/default/pods/a")
        server.create("pods", pod("c"))
        await assert_eventually(lambda: "c" in copy.names)
        await asyncio.sleep(0.1)
        assert copy.names == {"b", "c"}
        # A new object of the same name exists.
        server.create("pods", pod("a"))
        await assert_eventually(lambda: "a" in copy.names)
        server.create("pods", pod("d"))
        await assert_eventually(lambda: "d" in copy.names)
        await asyncio.sleep(0.1)
        assert copy.names == {"a", "b", "c", "d"}


async def test_what_was_gone_before_a_list_stays_gone(server: ApiServer, api: Api) -> None:
    async with replaying(server) as (proxy, reflector, copy):
        server.create("pods", pod("a"))
        await assert_eventually(lambda: copy.names == {"a"})
        await api.request("DELETE", "/api/v1/namespaces/default/pods/a")
        await assert_eventually(lambda: not copy.names)
        server.levers.expire_window()
        proxy.close_watches()
        await assert_eventually(lambda: reflector.lists == 2)
        server.create("pods", pod("b"))
        await assert_eventually(lambda: "b" in copy.names)
        await asyncio.sleep(0.1)
        assert copy.names == {"b"}


async def test_old_events_do_not_move_the_place_in_history_back(server: ApiServer) -> None:
    async with replaying(server) as (proxy, _, copy):
        for number in range(4):
            server.create("pods", pod(f"p{number}"))
        await assert_eventually(lambda: len(copy.names) == 4)
        await asyncio.sleep(0.1)
        proxy.mend()
        before = len(copy.events)
        proxy.close_watches()
        server.create("pods", pod("last"))
        await assert_eventually(lambda: "last" in copy.names)
        assert [name for _, name in copy.events[before:]] == ["last"]


async def test_a_right_to_list_without_the_right_to_watch_is_logged_once(
    server: ApiServer, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "topowise.kube.reflector")
    refusal = server.levers.answer(403, method="watch")
    async with running(api) as (reflector, copy):
        await assert_eventually(lambda: reflector.lists > 5)
        assert [record.getMessage() for record in caplog.records] == ["Listed", "Cannot list and watch, trying again"]
        server.levers.release(refusal.id)
        server.create("pods", pod("a"))
        await assert_eventually(lambda: copy.names == {"a"})
        server.create("pods", pod("b"))
        await assert_eventually(lambda: copy.names == {"a", "b"})
    assert [record.getMessage() for record in caplog.records][2:] == ["Watching again"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"MODIFIED","object":%s}',
        b'{"type": "MODIFIED", "object": %s}',
        b'{"object":%s,"type":"MODIFIED"}',
        b'{"type":"MODIFIED","object":%s,"more":{}}',
        b'{"type":"ADDED","object":%s,"type":"MODIFIED"}',
    ],
)
def test_an_event_is_read_in_whatever_order_it_is_written(line: bytes) -> None:
    kind, raw, envelope = _event(line % b'{"metadata":{"name":"a","resourceVersion":"7"},"spec":{}}')
    assert kind == "MODIFIED"
    assert pods.decode(raw).metadata.name == envelope.metadata.name == "a"


@pytest.mark.parametrize(
    "line",
    [b'{"type":"MODIFIED","object":{"metadata":{}', b'{"type":"MODIFIED","object":}', b'{"type":"ADDED","object":{}}}'],
)
def test_an_event_that_is_no_json_is_none(line: bytes) -> None:
    with pytest.raises(documents.UNREADABLE):
        _event(line)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["alone", "with a stop"])
async def test_a_watch_whose_time_runs_out_while_its_events_are_applied_is_resumed(
    monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """As after a stall of the event loop: events wait, and the limit of the watch has passed meanwhile. The limit then
    cancels the task between two events, outside of the request."""
    monkeypatch.setattr(module, "_MARGIN_S", 0.0)
    watches = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        watches += 1
        response = web.StreamResponse()
        await response.prepare(request)
        if watches == 1:
            events = [
                {"type": "ADDED", "object": {**pod(f"p{number}"), **_versioned(f"p{number}", 2 + number)}}
                for number in range(5)
            ]
            await response.write(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
        await asyncio.sleep(60)
        return response

    class Stalling(Copy):
        def apply(self, event: EventType, item: Any) -> None:
            super().apply(event, item)
            # Longer than the watch may take, then longer than a slice.
            if len(self.events) == 1:
                simulated_time.skip(1.2)
            else:
                time.sleep(0.01)
            if is_stopped and len(self.events) == 2:
                task.cancel()

    application = web.Application()
    application.router.add_get(PODS, answer)
    async with TestServer(application) as server, Api(_at(server), "test", timeout=20) as api:
        copy = Stalling()
        reflector = Reflector(api, PODS, pods.decode, copy, backoff=Backoff(0.02, 0.2), watch_seconds=(1.0, 1.0))
        task = asyncio.create_task(reflector.run())
        await assert_eventually(lambda: watches >= 2 or task.done())
        assert task.done() is is_stopped
        assert reflector.lists == 1
        assert copy.names
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def _versioned(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def _at(server: TestServer) -> Credentials:
    async def nobody(renew: bool) -> str:
        return ""

    return Credentials(str(server.make_url("")).rstrip("/"), None, nobody)
