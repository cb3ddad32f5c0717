"""The exporter survives a minute without API server, and then publishes the newest state."""

from __future__ import annotations

import asyncio
from typing import Any

from daemons import Start, assert_eventually
from exporter_setup import FakeKubelet, available
from sandbox.apiserver import ApiServer


async def test_a_minute_without_api_server_loses_nothing(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet
) -> None:
    exporter = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: available(server) == "3")
    server.levers.down()
    kubelet.give("p", 1)
    await asyncio.sleep(30)
    kubelet.give("q", 4)
    await asyncio.sleep(30)
    writes = server.writes()
    server.levers.up()
    await assert_eventually(lambda: available(server) == "1", within=35)
    assert server.writes() - writes == 1
    assert exporter.process.returncode is None
    # A line for the outage, for each kind of its errors and for its end; not a line per second.
    assert len(exporter.lines("Cannot publish")) <= 4


async def test_hung_requests_do_not_block_it_for_ever(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet
) -> None:
    from sandbox.apiserver.levers import Stall

    exporter = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: available(server) == "3")
    stalled = server.levers.pull(Stall(), method="PATCH")
    kubelet.give("p", 1)
    await assert_eventually(lambda: exporter.lines("no answer"), within=20)
    server.levers.release(stalled.id)
    await assert_eventually(lambda: available(server) == "2", within=35)
