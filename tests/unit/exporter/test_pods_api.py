"""The kubelet's Pods API gives events if it exists, and causes no errors if it does not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from sandbox.kubelet.holdings import NodeHoldings, PodHoldings
from sandbox.kubelet.podresources import PodsApi
from topowise.runtime.backoff import Backoff
from topowise.wire import pods_pb2 as pb
from topowise_exporter.kubelet.pods_api import REASON, PodsWatch
from topowise_exporter.triggers import FileWatch, Trigger


class Node:
    """Pods that a test changes, and their API."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: tuple[PodHoldings, ...] = ()
        self.api = PodsApi(self.holdings)

    def holdings(self) -> NodeHoldings:
        return NodeHoldings(frozenset(), (), frozenset(), {}, self.pods)

    def now_has(self, *names: str) -> None:
        self.pods = tuple(PodHoldings(f"uid-{name}", "default", name) for name in names)
        self.api.changed()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    pods_node = Node(tmp_path / "pods-api/pods-api.sock")
    yield pods_node
    await pods_node.api.stop()


@contextlib.asynccontextmanager
async def serving(socket: Path, *handlers: grpc.GenericRpcHandler) -> AsyncIterator[None]:
    """A kubelet with other answers."""
    server = grpc.aio.server(handlers=handlers)
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def watching(socket: Path, trigger: Trigger, backoff: float = 30.0, **more: Any) -> AsyncIterator[PodsWatch]:
    """The watch as the daemon runs it."""
    watch = PodsWatch(socket, trigger, backoff=Backoff(backoff, 60.0), **more)
    files = FileWatch(watch.appeared, {socket.parent: frozenset({socket.name})}, retry=0.05)
    tasks = [asyncio.create_task(watch.run()), asyncio.create_task(files.run())]
    try:
        yield watch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def notified(trigger: Trigger, within: float = 5.0) -> bool:
    return REASON in await trigger.wait(within, quiet=0.005)


async def until_watched(node: Node) -> None:
    async with asyncio.timeout(5):
        while not node.api.watchers:
            await asyncio.sleep(0.01)


async def test_every_kind_of_event_notifies(node: Node) -> None:
    await node.api.start(node.socket)
    trigger = Trigger()
    async with watching(node.socket, trigger):
        await until_watched(node)
        assert not await notified(trigger, within=0.2), "the end of the initial list says nothing new"
        for names in (("a",), ("a", "b"), ("b",), ()):
            node.now_has(*names)
            assert await notified(trigger)


async def test_pods_that_are_there_already_are_an_event_too(node: Node) -> None:
    node.now_has("a")
    await node.api.start(node.socket)
    trigger = Trigger()
    async with watching(node.socket, trigger):
        assert await notified(trigger)


async def test_a_kubelet_that_comes_back_is_watched_at_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trigger = Trigger()
    async with watching(node.socket, trigger):
        await asyncio.sleep(0.1)
        await node.api.start(node.socket)
        await until_watched(node)
        await node.api.stop()
        node.socket.unlink(missing_ok=True)
        await asyncio.sleep(0.1)
        node.api = PodsApi(node.holdings)
        # The back-off of half a minute is ended by the new socket.
        await node.api.start(node.socket)
        await until_watched(node)
        trigger.reasons.clear()
        node.now_has("a")
        assert await notified(trigger)
    shown = [record.message for record in caplog.records if "Pods API" in record.message]
    assert len(shown) <= 5
    assert shown[-1] == "Watching the kubelet's Pods API"


async def test_the_regular_end_of_a_watch_is_no_problem(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node.now_has("a")
    await node.api.start(node.socket)
    trigger = Trigger()
    async with watching(node.socket, trigger, 0.01, uniform=lambda low, high: 2e-4):
        # Each watch begins with an event of the pod.
        assert await notified(trigger)
        assert await notified(trigger)
    assert {record.message for record in caplog.records if "Pods API" in record.message} == {
        "Watching the kubelet's Pods API"
    }


async def test_a_node_without_the_api_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trigger = Trigger()
    async with watching(tmp_path / "none/pods-api.sock", trigger) as watch:
        for _ in range(3):
            watch.appeared.notify("nothing")
            await asyncio.sleep(0.05)
    (record,) = [record for record in caplog.records if "Pods API" in record.message]
    assert record.levelno == logging.INFO
    assert not trigger.reasons


class Garbage(grpc.GenericRpcHandler):
    """Answers the watch with bytes that are no event."""

    def service(self, handler_call_details: Any) -> Any:
        async def watch(request: bytes, context: Any) -> AsyncIterator[bytes]:
            yield b"\xff\xff"

        return grpc.unary_stream_rpc_method_handler(watch)


@pytest.mark.parametrize(
    ("handlers", "said"),
    [((), "another version"), ((Garbage(),), "unknown message format")],
    ids=["version", "garbage"],
)
async def test_another_api_is_said_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, handlers: tuple[grpc.GenericRpcHandler, ...], said: str
) -> None:
    caplog.set_level(logging.INFO)
    socket = tmp_path / "pods-api.sock"
    async with serving(socket, *handlers), watching(socket, Trigger()), asyncio.timeout(5):
        while not any(said in record.message for record in caplog.records):
            await asyncio.sleep(0.01)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_cancelled_in_the_middle_of_a_stream_it_leaves_the_kubelet_alone(node: Node) -> None:
    await node.api.start(node.socket)
    task = asyncio.create_task(PodsWatch(node.socket, Trigger()).run())
    await until_watched(node)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        while node.api.watchers:
            await asyncio.sleep(0.01)


class Breaking(grpc.GenericRpcHandler):
    """Sends an event on each watch and then breaks it off, as for an event that is too large for the client."""

    def __init__(self) -> None:
        self.watches = 0

    def service(self, handler_call_details: Any) -> Any:
        async def watch(request: bytes, context: Any) -> AsyncIterator[bytes]:
            self.watches += 1
            yield pb.WatchPodsEvent(type=pb.ADDED).SerializeToString()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")

        return grpc.unary_stream_rpc_method_handler(watch)


async def test_a_watch_that_always_breaks_after_its_first_events_backs_off_and_floods_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    socket, breaking = tmp_path / "pods-api.sock", Breaking()
    watch = PodsWatch(socket, Trigger(), backoff=Backoff(0.02, 60.0, uniform=lambda low, high: high))
    async with serving(socket, breaking):
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert 3 <= breaking.watches <= 7
    assert len([record for record in caplog.records if "Pods API" in record.message]) <= 3


async def test_a_directory_that_may_not_be_looked_into_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    # Path.exists raises for it, as it does for a directory of another user.
    task = asyncio.create_task(PodsWatch(Path("/" + "x" * 300) / "pods-api.sock", Trigger()).run())
    await asyncio.sleep(0.1)
    assert not task.done()
    task.cancel()
    assert any("No Pods API" in record.message for record in caplog.records)
