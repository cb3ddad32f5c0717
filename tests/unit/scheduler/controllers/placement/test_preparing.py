"""What options prepare before a gate is opened."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from daemons import assert_eventually
from placing import Placing
from scheduling import NoApi
from topowise.placement import PLACED_ON
from topowise_scheduler.controllers.placement.writing import Placer
from topowise_scheduler.ledger.pods.records import PodRecord


class Cluster(NoApi):
    """An API server whose pods are those of `placing`, and an option with a step before the gate of each pod opens."""

    def __init__(self, placing: Placing) -> None:
        self._placing = placing
        self.prepared: list[str] = []
        self.written: list[str] = []

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        name = path.rpartition("/")[2]
        self._placing.put(name, annotations={PLACED_ON: "n1"}, schedulingGates=None)
        self.written.append(name)
        return b"{}"

    def wait_s(self, record: PodRecord) -> float:
        return 0.0 if record.name.startswith("plain") else 1.0

    async def prebind(self, record: PodRecord, node: str, book: Any) -> tuple[PodRecord, str]:
        self.prepared.append(record.name)
        return record, ""

    async def unreserve(self, record: PodRecord, node: str) -> None:
        self.prepared.remove(record.name)


async def test_a_node_is_prepared_for_a_pod_once_the_pod_before_is_bound() -> None:
    """The kubelet gives labelled markers to the next pod that it admits, so a label might steer the pod before."""
    placing = Placing("8")
    cluster = Cluster(placing)
    placing.put("a")
    placing.put("b")
    placer = Placer(cluster, placing.ledger, placing.decisions, settles=False, prebinds=[cluster])
    task = asyncio.create_task(placer.run())
    await assert_eventually(lambda: cluster.written == ["a"])
    await asyncio.sleep(0.1)
    assert cluster.prepared == ["a"]
    placing.bind("a", "n1")
    await assert_eventually(lambda: cluster.written == ["a", "b"])
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_prepared_pod_that_is_not_bound_holds_no_writer() -> None:
    placing = Placing("2", "8")
    cluster = Cluster(placing)
    placer = Placer(cluster, placing.ledger, placing.decisions, settles=False, prebinds=[cluster], writes=1)
    placing.put("a")
    task = asyncio.create_task(placer.run())
    await assert_eventually(lambda: cluster.written == ["a"])
    placing.put("plain")
    await assert_eventually(lambda: cluster.written == ["a", "plain"], within=5.0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
