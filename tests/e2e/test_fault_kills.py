"""Repeated SIGKILL of the exporter: the end state is the same as without."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from daemons import Daemon, Start, assert_eventually
from exporter_setup import FakeKubelet, available, published
from sandbox.apiserver import ApiServer

_KILLS = 10


async def test_an_exporter_that_is_killed_ten_times_while_pods_come_and_go(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet
) -> None:
    random = Random(22)
    server.create("nodes", {"metadata": {"name": "n1"}})
    topology: dict[str, Any] | None = None
    exporter: Daemon = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: available(server) == "3", within=60)
    uid = str((published(server) or {})["metadata"]["uid"])
    for number in range(_KILLS):
        await asyncio.sleep(random.uniform(0.0, 1.0))
        kubelet.pods = ()
        for cpu in random.sample((1, 4, 5), number % 4):
            kubelet.give(f"p{number}-{cpu}", cpu)
        # In the middle of a sync, a write, or its own start.
        await asyncio.sleep(random.uniform(0.0, 0.4))
        exporter.process.kill()
        await exporter.process.wait()
        assert published(server) is not None
        exporter = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: available(server) == str(3 - (_KILLS - 1) % 4), within=60)
    topology = published(server)
    assert topology is not None
    assert topology["metadata"]["uid"] == uid
    (manager,) = {entry["manager"] for entry in topology["metadata"]["managedFields"]}
    assert manager == "topowise-exporter"
    # The exporter does not take its earlier processes for another writer.
    await asyncio.sleep(2)
    assert not exporter.lines("Somebody else writes")
