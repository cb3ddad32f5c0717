"""Repeated SIGKILL during work: no kubelet refuses a pod, and the end state is the same as without."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from burst import Bench, Scenario, assert_no_refusals, assert_nothing_left_out
from daemons import Daemon, Start, assert_eventually
from exporter_setup import FakeKubelet, available, published
from sandbox.apiserver import ApiServer

_KILLS = 10


async def test_a_service_that_is_killed_ten_times_in_one_burst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = Random(21)
    async with Bench(Scenario(nodes=12, pods=400, seed=21), tmp_path) as bench:
        kills = 0

        async def killer() -> None:
            nonlocal kills
            for _ in range(_KILLS):
                await asyncio.sleep(random.uniform(0.2, 2.0))
                await bench.services[0].kill()
                kills += 1
                await asyncio.sleep(random.uniform(0.0, 0.5))
                await bench.services[0].start()

        killing = asyncio.create_task(killer())
        try:
            await bench.feed()
            await killing
            await bench._settle()
        finally:
            killing.cancel()
        figures = await bench.figures()
        with capsys.disabled():
            sys.stdout.write(
                f"\nkills {kills}  " + "  ".join(f"{name} {text}" for name, text in figures.items()) + "\n"
            )
        assert kills == _KILLS
        assert_no_refusals(bench)
        await assert_nothing_left_out(bench)
        # The text of /metrics may be a second old.
        await asyncio.sleep(1.1)
        assert (await bench.services[0].metrics(bench.session))["open_reservations"] == 0


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
