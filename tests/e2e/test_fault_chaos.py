"""Many faults in the same burst: services are killed in turn, Nodes and reports are deleted, clocks are wrong.

The second half of `make soak`, which sets a new seed for each run (`TOPOWISE_SEED`).
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from burst import Bench, Scenario, assert_no_refusals, assert_nothing_left_out
from faults.clock import Clock

_SEED = int(os.environ.get("TOPOWISE_SEED", "11"))
_PODS = 400


async def conclude(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    figures = await bench.figures()
    with capsys.disabled():
        sys.stdout.write(f"\nseed {_SEED}: " + "  ".join(f"{name} {value}" for name, value in figures.items()) + "\n")
    assert_no_refusals(bench)
    await assert_nothing_left_out(bench)


async def test_two_services_that_are_killed_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = Scenario(pods=_PODS, replicas=2, seed=_SEED, lifetimes=(2.0, 8.0))
    async with Bench(scenario, tmp_path) as bench:
        await bench.feed(dict.fromkeys((0.2, 0.4, 0.6, 0.8), bench.kill_the_one_that_is_asked))
        await conclude(bench, capsys)


async def test_nodes_and_reports_that_are_deleted_in_a_burst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Bench(Scenario(pods=_PODS, seed=_SEED, lifetimes=(2.0, 8.0)), tmp_path) as bench:
        await bench.feed({0.2: bench.delete_reports, 0.4: bench.delete_nodes, 0.7: bench.delete_reports})
        await conclude(bench, capsys)


async def test_services_whose_clocks_are_wrong_and_everything_else_goes_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(tmp_path / "clock")
    clock.jump("-3h")

    async def jump() -> None:
        clock.jump("+1d")
        await asyncio.sleep(1)
        clock.jump("-90s")

    scenario = Scenario(pods=_PODS, replicas=2, blind_pods=40, seed=_SEED, lifetimes=(2.0, 8.0))
    async with Bench(scenario, tmp_path, clock=clock) as bench:
        due = {0.2: jump, 0.3: bench.delete_reports, 0.4: bench.kill_the_one_that_is_asked, 0.5: bench.delete_nodes}
        await bench.feed({**due, 0.6: jump, 0.7: bench.restart_kubelets, 0.8: bench.kill_the_one_that_is_asked})
        await conclude(bench, capsys)
