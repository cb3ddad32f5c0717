"""The node's clock jumps by a day, forward and back: waits, reservations, leases and back-offs go by another clock."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from daemons import Start, assert_eventually
from exporter_setup import FakeKubelet
from faults import FaultProxy
from faults.clock import Clock
from faults.site import pod, site
from faults.tls_front import TlsFront
from pki import Authority
from sandbox.apiserver import ApiServer
from topowise_scheduler.ledger.reservations import DEFAULT_S

DAY_S = 86400.0


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(tmp_path / "clock")
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    return clock


@pytest.mark.parametrize("jump", ["+1d", "-1d"])
async def test_a_clock_that_jumps_by_a_day(
    jump: str,
    clock: Clock,
    server: ApiServer,
    start: Start,
    config: dict[str, Any],
    kubelet: FakeKubelet,
    tmp_path: Path,
) -> None:
    election = {"leaderElection": {"enabled": True}}
    async with site(server, start, config, kubelet, tmp_path, **election) as place:

        async def reservations_are(count: int) -> bool:
            return (await place.metrics())["open_reservations"] == count

        await assert_eventually(lambda: place.scheduler.lines("Acquired the lease"), within=30)
        reserved = pod("reserved", 6)
        assert (await place.service.ask("filter", reserved, ["n2"], place.session))["NodeNames"] == ["n2"]
        await place.service.ask("prioritize", reserved, ["n2"], place.session)
        began = time.monotonic()
        await assert_eventually(lambda: reservations_are(1), within=5)
        lines = place.log_lengths()
        clock.jump(jump)
        # The reservation expires neither early nor late.
        await asyncio.sleep(3)
        assert await reservations_are(1)
        await assert_eventually(lambda: reservations_are(0), within=60)
        assert DEFAULT_S - 1 <= time.monotonic() - began <= 60
        # The daemons see a change at once, and survive an outage at the moment of a jump.
        kubelet.give("p", 1)
        place.bound("p", "n1", 1)
        await place.publishes(2)
        await place.proxy.down()
        await assert_eventually(lambda: place.scheduler.lines("Cannot list and watch"), within=30)
        clock.jump("+0")
        await asyncio.sleep(3)
        await place.proxy.up()
        place.bound("q", "n2", 2)
        await place.has({"n1": 4, "n2": 4})
        # The daemons' logs show the other day.
        date = time.strftime("%m%d", time.localtime(time.time() + (DAY_S if jump == "+1d" else -DAY_S)))
        assert all(line[1:5] == date for line in place.scheduler.lines("Cannot list and watch")[:1])
        # The leader renewed the lease beyond its duration, and lost it only by the outage.
        assert not place.scheduler.lines("Another process holds the lease")
        assert await place.service.is_ready()
        place.assert_alive()
        place.assert_said_once(lines)


async def test_a_clock_that_jumps_past_the_end_of_the_api_servers_certificate(
    clock: Clock, server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "ca", "ca")
    async with AsyncExitStack() as stack:

        async def access(cluster: dict[str, Any], _user: dict[str, Any], proxy: FaultProxy) -> None:
            front = await stack.enter_async_context(TlsFront(("127.0.0.1", URL(proxy.url).port or 0)))
            await front.serve(*authority.issue("server"))
            cluster |= {"server": front.url, "certificate-authority": str(authority.certificate)}

        place = await stack.enter_async_context(site(server, start, config, kubelet, tmp_path, access=access))
        lines = place.log_lengths()
        # Certificates of the tests are good for two days.
        clock.jump("+9d")
        place.proxy.close_watches()
        kubelet.give("p", 1)
        place.bound("p", "n1", 1)
        place.bound("q", "n2", 2)
        for daemon in (place.exporter, place.scheduler):
            await assert_eventually(lambda daemon=daemon: daemon.lines("certificate has expired"), within=60)
        assert await place.room("n2") == 6
        clock.jump("+0")
        await place.publishes(2)
        await place.has({"n1": 4, "n2": 4})
        place.assert_alive()
        place.assert_said_once(lines)
