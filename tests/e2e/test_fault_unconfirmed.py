"""A kubelet with incomplete answers, and a deleted object: the exporter publishes no incomplete state, and restores."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemons import Start, assert_eventually
from exporter_setup import FakeKubelet, available, published
from sandbox.apiserver import ApiServer
from sandbox.kubelet.holdings import ContainerHoldings, PodHoldings
from sandbox.kubelet.state_files import StateFiles
from topowise import nrt
from whole_node import attributes


async def test_a_starting_kubelet_is_not_published_as_an_empty_node(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    files = StateFiles(root)
    kubelet.give("p", 1, 4)
    files.write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)
    (root / "pods/p").mkdir(parents=True)
    exporter = await start("topowise_exporter", "run", config={**config, "kubeletRoot": str(root)})
    await assert_eventually(lambda: available(server) == "1")
    pods, kubelet.pods = kubelet.pods, ()
    await kubelet.stop()
    await kubelet.start()
    # The object shows at once that it is unconfirmed.
    await assert_eventually(lambda: marked(server) == "pods", within=4)
    await asyncio.sleep(2)
    assert available(server) == "1"
    kubelet.pods = pods
    await assert_eventually(lambda: marked(server) is None, within=3)
    assert available(server) == "1"
    assert len(exporter.lines("the last true object stays")) == 2


def marked(server: ApiServer) -> str | None:
    topology = published(server) or {}
    named = attributes(topology)
    return named.get("topowise.io/unconfirmed")


async def test_a_pod_that_is_being_admitted_is_published_once_and_whole(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "pods").mkdir(parents=True)
    files = StateFiles(root)
    files.write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)
    await start("topowise_exporter", "run", config={**config, "interval": "1h", "kubeletRoot": str(root)})
    await assert_eventually(lambda: available(server) == "3")
    server.journal.clear()
    for count in range(1, 4):
        containers = tuple(ContainerHoldings(f"c{cpu}", "app", frozenset({cpu})) for cpu in (1, 4, 5)[:count])
        kubelet.pods = (PodHoldings("u1", "default", "p", containers),)
        files.write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)
        await asyncio.sleep(0.5)
        assert available(server) == "3"
    (root / "pods/u1").mkdir()
    await assert_eventually(lambda: available(server) == "0", within=1.0)
    assert server.writes(resource="noderesourcetopologies*") == 1


async def delete(server: ApiServer, path: str) -> None:
    async with aiohttp.ClientSession() as session, session.delete(server.url + path) as answer:
        assert answer.status == 200


async def test_a_deleted_object_is_back_within_a_second_however_long_the_interval(
    server: ApiServer, start: Start, config: dict[str, Any]
) -> None:
    server.create("nodes", {"metadata": {"name": "n1"}})
    exporter = await start("topowise_exporter", "run", config={**config, "interval": "1h"})
    await assert_eventually(lambda: published(server))
    # Its first comparison may be a second after its start at the earliest.
    await asyncio.sleep(1)
    server.journal.clear()
    await asyncio.sleep(1)
    # The exporter's own write is an event too, and causes no further write.
    assert not server.requests()
    before = published(server)
    await delete(server, f"{nrt.PATH}/n1")
    await assert_eventually(lambda: published(server), within=1.5)
    assert (published(server) or {})["zones"] == (before or {})["zones"]
    assert len(exporter.lines("it was deleted")) == 1


@pytest.mark.parametrize("damage", ["half", "fifo", "large", "other"])
async def test_a_device_checkpoint_that_is_damaged(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path, damage: str
) -> None:
    root = tmp_path / "root"
    (root / "pods").mkdir(parents=True)
    StateFiles(root).write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)
    file = root / "device-plugins/kubelet_internal_checkpoint"
    file.unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    if damage == "fifo":
        os.mkfifo(file)
    elif damage == "large":
        with file.open("wb") as large:
            large.truncate(1 << 30)
    else:
        file.write_text({"half": '{"Data":{"PodDeviceEntries":nu', "other": '{"version":9}'}[damage])
    exporter = await start("topowise_exporter", "run", config={**config, "kubeletRoot": str(root)})
    await assert_eventually(lambda: available(server) == "3")
    kubelet.give("p", 1)
    StateFiles(root).write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=False)
    (root / "pods/p").mkdir()
    await assert_eventually(lambda: available(server) == "2", within=3)
    assert len(exporter.lines("Device manager checkpoint cannot be read")) == 1
    assert not exporter.lines("Traceback")
