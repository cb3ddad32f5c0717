"""A small form of the burst of tests/e2e: hollow nodes, overlapping binds and the real service."""

from __future__ import annotations

from pathlib import Path

from burst import Bench, Scenario, assert_no_refusals, assert_nothing_left_out


async def test_a_burst_of_pods_is_placed_and_no_kubelet_refuses_a_pod(tmp_path: Path) -> None:
    scenario = Scenario(nodes=8, pods=150, lifetimes=(0.5, 2.5))
    async with Bench(scenario, tmp_path) as bench:
        await bench.feed()
        assert bench.scheduler.counts["bound"] >= 100
        assert_no_refusals(bench)
        await assert_nothing_left_out(bench)
