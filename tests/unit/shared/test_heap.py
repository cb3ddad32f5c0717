"""Garbage collections are short however much there is, nothing leaks by that, and what is free is given back."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from topowise.kube.api import Api
from topowise.kube.credentials import Credentials
from topowise.runtime.heap import Heap, trim

LONGEST_MS = 10
# Python's own thresholds let a full collection wait for 70,000 new objects.
MOST_OBJECTS = 30_000


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


class Longest:
    """The longest full collection so far, the most objects that it visited, and the most new objects that any
    collection visited."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.objects = 0
        self.young = 0
        self._since = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.young = max(self.young, len(gc.get_objects(generation=0)))
            if info["generation"] == 2:
                self.objects = max(self.objects, len(gc.get_objects()))
            self._since = time.thread_time()
        elif info["generation"] == 2:
            self.ms = max(self.ms, 1e3 * (time.thread_time() - self._since))


@pytest.mark.nightly
async def test_collections_stay_short_while_more_and_more_is_kept() -> None:
    many = [[number] for number in range(1_200_000)]
    gc.collect()
    longest, heap = Longest(), asyncio.create_task(Heap().run())
    await asyncio.sleep(0)
    gc.callbacks.append(longest)
    # A collection takes some 70 ms at the end of it if all of them are gone through.
    objects = [[number] for number in range(800_000)]
    gc.callbacks.remove(longest)
    heap.cancel()
    await asyncio.gather(heap, return_exceptions=True)
    assert (len(many), len(objects)) == (1_200_000, 800_000)
    assert 0 < longest.ms < LONGEST_MS
    assert gc.get_freeze_count() > 500_000
    assert not [callback for callback in gc.callbacks if getattr(callback, "__self__", None).__class__ is Heap]


async def test_objects_that_take_long_are_gone_through_a_few_at_a_time() -> None:
    gc.collect()
    longest, heap = Longest(), asyncio.create_task(Heap().run())
    await asyncio.sleep(0)
    gc.callbacks.append(longest)
    objects = [[number] * 200 for number in range(100_000)]
    gc.callbacks.remove(longest)
    heap.cancel()
    await asyncio.gather(heap, return_exceptions=True)
    assert len(objects) == 100_000
    assert 0 < longest.objects < MOST_OBJECTS
    assert gc.get_threshold() == (700, 10, 10)


async def test_objects_that_replace_frozen_objects_are_collected_in_portions() -> None:
    """Python starts a collection by the number of new containers less freed ones, which stays at 0 here."""
    objects = [[number] for number in range(30_000)]
    gc.collect()
    longest, heap = Longest(), asyncio.create_task(Heap().run())
    await asyncio.sleep(0)
    gc.callbacks.append(longest)
    for first in range(0, len(objects), 100):
        for number in range(first, first + 100):
            objects[number] = [number]
        await asyncio.sleep(0.001)
    gc.collect()
    gc.callbacks.remove(longest)
    heap.cancel()
    await asyncio.gather(heap, return_exceptions=True)
    assert 0 < longest.young < len(objects) / 3


def test_connections_that_were_open_at_a_collection_leave_nothing_when_they_close() -> None:
    async def anonymous(_: bool) -> str:
        return ""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await asyncio.sleep(0.01)
        writer.write(b"0\r\n\r\n")
        writer.close()

    async def watch(times: int) -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, Api(Credentials(address, None, anonymous), "test") as api:
            for _ in range(times):
                async with api.stream("/x", query={"watch": "1"}, timeout=5, silence=5) as chunks:
                    async for _chunk in chunks:
                        gc.freeze()
        await asyncio.sleep(0.05)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(watch(2))
        gc.unfreeze()
        gc.collect()
        gc.disable()
        try:
            runner.run(watch(20))
            gc.unfreeze()
            assert gc.collect() < 40
        finally:
            gc.enable()


def test_free_memory_in_the_middle_of_the_heap_is_released() -> None:
    objects = [bytearray(b"x" * 60_000) for _ in range(1000)]
    del objects[::2]
    before = _resident_mib()
    trim()
    assert before - _resident_mib() > 15
    assert len(objects) == 500


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)
