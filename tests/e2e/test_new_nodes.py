"""Nodes that join during a burst: the start-up taint keeps pods away until the exporter's first report."""

from __future__ import annotations

import asyncio
import sys
from itertools import islice
from pathlib import Path

import pytest

from burst.nodes import nodes
from real_cluster import ASSETS, MISSING, Cluster
from sandbox.controlplane import ControlPlane
from sandbox.hollow import Reporting
from topowise_scheduler.ledger.nodes import STARTUP_TAINT

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

TAINT = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
# The delay of an exporter whose image must be pulled first.
LATE = Reporting(wait=(2.0, 3.0), lag=(0.0, 0.05))
_AT_FIRST, _LATER = 4, 8


async def test_nodes_join_during_a_burst(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"startupTaint": {"enabled": True}, "refusedPods": {"delete": True}}
    kinds = list(nodes(_AT_FIRST + _LATER))
    async with Cluster(plane, tmp_path, islice(kinds, _AT_FIRST), reporting=LATE, settings=settings) as cluster:

        async def join() -> None:
            for name, kind in kinds[_AT_FIRST:]:
                await cluster.fleet.join(name, kind.machine, kind.config, [TAINT])
                await asyncio.sleep(0.3)

        await cluster.feed(300, halfway=join)
        joined = {name for name, _ in kinds[_AT_FIRST:]}
        used = {pod["spec"]["nodeName"] for pod in await cluster.pods() if pod["spec"].get("nodeName")}
        metrics = await cluster.service.metrics(cluster.session)
        removed = metrics["startup_taints_removed_total"]
        with capsys.disabled():
            sys.stdout.write(
                f"\n  refused {len(cluster.refusals)}, taints removed {removed:.0f}, {len(used & joined)} used\n"
            )
        assert used & joined
        assert removed == _LATER
        await cluster.assert_all_well()
