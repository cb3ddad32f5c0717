"""A full or read-only disk: neither daemon needs a writable disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemons import Start, assert_eventually
from exporter_setup import FakeKubelet
from faults import assert_said_once, disks
from faults.site import LONG_S, pod, site
from sandbox.apiserver import ApiServer
from scheduler_process import Service

Disk = Callable[[Path], tuple[str, ...]]


@pytest.mark.parametrize("disk", [disks.read_only, disks.full], ids=["read-only", "full"])
async def test_both_daemons_work_on_a_disk_that_is(
    disk: Disk, server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    under = disk(tmp_path / "disk")
    async with site(server, start, config, kubelet, tmp_path, under=under) as place:
        kubelet.give("p", 1)
        place.bound("p", "n1", 1)
        await place.publishes(2)
        server.create("pods", pod("ours", 6))
        created = next(pod for pod in server.store.objects("pods") if pod["metadata"]["name"] == "ours")
        assert await place.bind("ours", created["metadata"]["uid"], "n2") == ""
        await place.has({"n1": 4, "n2": 0})
        await place.proxy.down()
        await asyncio.sleep(2)
        await place.proxy.up()
        place.add_node("n3", 3)
        await place.has({"n3": 3})
        place.assert_alive()
        # The start, the two lists of things, the outage.
        assert_said_once(place.exporter, at_most=2)
        for daemon in (place.exporter, place.scheduler):
            assert not daemon.lines("Read-only file system"), daemon.log
            assert not daemon.lines("No space left"), daemon.log
            assert await daemon.stop() == 0


async def test_a_grpc_socket_on_a_read_only_disk_ends_it_with_one_line(
    server: ApiServer, start: Start, tmp_path: Path
) -> None:
    under = disks.read_only(tmp_path / "disk")
    service = Service(server, tmp_path)
    service.config["grpc"] = {"socket": str(tmp_path / "disk/scoring.sock")}
    process = await start("topowise_scheduler", "serve", config=service.config, under=under)
    async with asyncio.timeout(LONG_S):
        assert await process.process.wait() == 1
    (line,) = process.lines("Task ended, stopping the process")
    assert 'task="grpc"' in line
    assert "Read-only file system" in process.log
    assert "scoring.sock" in process.log.partition(line)[2]


async def test_a_grpc_socket_on_a_full_disk_needs_no_space(server: ApiServer, start: Start, tmp_path: Path) -> None:
    under = disks.full(tmp_path / "disk")
    service = Service(server, tmp_path)
    service.config["grpc"] = {"socket": str(tmp_path / "disk/scoring.sock")}
    process = await start("topowise_scheduler", "serve", config=service.config, under=under)
    await assert_eventually(lambda: process.lines("Serving gRPC"), within=LONG_S)
    assert await process.stop() == 0


async def test_a_log_that_cannot_be_written_ends_no_daemon(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """`/dev/full` accepts no byte, like a full disk behind a container's log."""
    under = ("sh", "-c", 'exec "$@" 2>/dev/full >/dev/full', "sh")
    async with site(server, start, config, kubelet, tmp_path, under=under) as place:
        await place.proxy.down()
        await asyncio.sleep(2)
        await place.proxy.up()
        kubelet.give("p", 1)
        await place.publishes(2)
        place.add_node("n3", 3)
        await place.has({"n3": 3})
        place.assert_alive()
        assert await place.exporter.stop() == 0
