"""The dashboard of a running service, without a browser."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from daemons import Start, assert_eventually
from dashboard_cluster import comes, condition, decide, started
from refusal_words import refusals
from sandbox.apiserver import ApiServer
from scheduler_process import Service
from topowise.kube.api import Api

pytestmark = pytest.mark.own_time


async def test_it_is_not_there_unless_it_is_asked_for(
    server: ApiServer, api: Api, tmp_path: Path, start: Start
) -> None:
    service = await started(server, api, tmp_path, start)
    async with aiohttp.ClientSession() as session:
        for path in ("ui", "ui/app.js"):
            async with session.get(f"{service.pages}/{path}") as response:
                assert response.status == 404


async def test_decisions_survive_a_restart(server: ApiServer, api: Api, tmp_path: Path, start: Start) -> None:
    first = await started(server, api, tmp_path, start, enabled=True)
    await decide(first, server, "trainer", "6")
    said = f"0/2 nodes are available: 2 {refusals.NOT_NOW}."
    await comes(api, "waits", "8", conditions=condition("False", said))
    second = Service(server, tmp_path)
    second.config["ui"] = {"enabled": True}
    await start("topowise_scheduler", "serve", config=second.config)
    await assert_eventually(second.is_ready)
    async with aiohttp.ClientSession() as session, session.get(f"{second.pages}/ui") as response:
        text = await response.text()
    decisions = text.partition('id="decisions-list"')[2].partition("</section>")[0]
    for word in ("default/trainer", "bound", "metal-1", "NUMA 0", "default/waits", "no room", "2026-01-02T03:04:05Z"):
        assert word in decisions
