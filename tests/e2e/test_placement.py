"""Gated pods on a real API server, with a stock kube-scheduler that knows nothing of topowise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from burst.nodes import KINDS, Kind
from real_cluster import ASSETS, MISSING, Cluster
from sandbox.controlplane import ControlPlane

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver


def nodes(count: int) -> Iterator[tuple[str, Kind]]:
    kinds = list(KINDS.values())
    for number in range(count):
        yield f"metal-{number:03d}", kinds[number % len(kinds)]


async def kill_service(cluster: Cluster) -> None:
    await cluster.service.kill()
    await asyncio.sleep(1.0)
    await cluster.service.start()


async def stop_kube_scheduler(cluster: Cluster) -> None:
    await cluster.stop_scheduler()
    await asyncio.sleep(5.0)
    await cluster.start_scheduler()


@pytest.mark.parametrize("form", ["required", "nominated"])
@pytest.mark.parametrize("halfway", [None, kill_service, stop_kube_scheduler])
async def test_a_burst_of_gated_pods(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, halfway: Any
) -> None:
    """No kubelet refuses a pod, no pod waits beside room, every pod goes where it was placed, and none is made anew."""
    settings = {"placement": {"enabled": True, "form": form}}
    async with Cluster(plane, tmp_path, nodes(10), settings=settings, gated=True) as cluster:
        started = time.monotonic()
        await cluster.feed(300, halfway=None if halfway is None else partial(halfway, cluster))
        await cluster.assert_all_well()
        metrics = await cluster.service.metrics(cluster.session)
        outcomes = {key: value for key, value in metrics.items() if key.startswith("placements_total") and value}
        with capsys.disabled():
            print(f"\n  {form}: {time.monotonic() - started:.0f} s, {outcomes}", end="")  # noqa: T201
        assert not metrics.get('placements_total{outcome="remade"}')
        if form == "required":
            assert not metrics.get('placements_total{outcome="elsewhere"}')
        assert not metrics["placed_pods"]
