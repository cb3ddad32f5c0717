"""Work on a large cluster is divided into turns of the event loop; the tests print the longest turn of each kind.

All runs in a single process, so that CPU time measures turns. The target is 10 ms, which `make bench PART=scheduler`
measures. The tests fail for work in a single turn, which takes seconds.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from crowds import ask, cluster, consumers, many_containers, names, records, relist, reports, requeueing, waiting
from scheduling import Service, pod
from topowise.runtime.event_loop import sliced
from topowise.runtime.heap import Heap
from watchdog import idle_share, watchdog

NODES = 5000
PODS = 30
UNDIVIDED_MS = 100.0


@pytest.fixture(scope="module")
def service() -> Service:
    service = cluster(NODES)
    service.answers.fits(service.records.decode(msgspec.json.encode(pod("first"))), names(NODES))
    gc.collect()
    gc.freeze()
    return service


@asynccontextmanager
async def within(label: str) -> AsyncIterator[None]:
    # As in the daemon.
    heap = asyncio.create_task(Heap().run())
    async with watchdog() as dog:
        yield
    heap.cancel()
    sys.stdout.write(f"{label}: the longest turn took {dog.longest_ms:.1f} ms of {dog.turns}\n")
    assert dog.longest_ms < UNDIVIDED_MS, label


async def during(label: str, work: Coroutine[Any, Any, Any]) -> Any:
    async with within(label):
        return await work


async def test_large_pods_and_an_explanation_of_all_nodes(service: Service) -> None:
    for containers in (1, 4, 8, 32, 64, 256, 20_000):
        # A pod of four containers needs sums on all nodes; a pod of many containers needs its answer.
        await during(
            f"a pod of {containers} containers", ask(service, "filter", many_containers(containers), names(NODES))
        )
    for containers in (65, 200, 256):
        document = many_containers(containers, "1m", "1Mi")
        await during(f"a fitting pod of {containers} containers", ask(service, "filter", document, names(NODES)))
    await during("an explanation", ask(service, "explain", pod("a", "2"), []))


async def test_two_hundred_kinds_of_waiting_pods(service: Service) -> None:
    waiting(service, 200)
    async with within("200 kinds of waiting pods"):
        task = await requeueing(service)
        await asyncio.sleep(5)
    # The remaining trials run without the watchdog, which uses a whole core.
    await asyncio.sleep(15)
    # It wakes ten times as often here as it does by default.
    assert await idle_share(2.0) < 0.05
    task.cancel()


async def test_a_thousand_nominated_pods_and_four_thousand_quarantined_nodes(service: Service) -> None:
    async with within("1,000 pods are nominated"):
        for name in names(1000):
            service.put(pod(f"nominated-{name}", "3", nominatedNodeName=name, priority=-1))
            await asyncio.sleep(0)
    for label in ("a pod before which they do not count", "another"):
        await during(label, ask(service, "filter", pod(label[:4], "2"), names(NODES)))
    async with within("4,000 nodes refuse a pod"):
        for name in names(4000):
            service.refuse(pod(f"r-{name}", "4"), name)
            await asyncio.sleep(0)
    assert len(service.ledger.gates.quarantine) == 4000
    for label in ("a pod of that shape", "another of it"):
        await during(label, ask(service, "filter", pod(label[:4], "4"), names(NODES)))


async def test_lists_of_150_000_pods_and_5_000_nodes(service: Service) -> None:
    """The last test of the module, as it fills the nodes."""
    watched = consumers(service)
    listed, reported = records(service, NODES, PODS), list(reports(NODES, "2"))
    gc.collect()
    await during("a list of pods", relist(watched["pods"], listed))
    await during("the same list again", relist(watched["pods"], listed))
    await during("a list of reports", relist(watched["noderesourcetopologies"], reported))
    await during("what time changes", sliced(service.ledger.ticking()))
    fewer = [pod for pod in listed if not pod.uid.endswith("-0")]
    gc.collect()
    await during("a list that lacks a pod of every node", relist(watched["pods"], fewer))
    await during("what time changes after it", sliced(service.ledger.ticking()))
    nodes = [service.nodes.decode(msgspec.json.encode({"metadata": {"name": name}})) for name in names(3 * NODES)]
    await during("a list of 15,000 nodes", relist(watched["nodes"], nodes))
