"""Thousands of pods in a minute: no kubelet refuses a pod, and no pod waits although it fits on a node.

`TOPOWISE_BURST` scales the number of pods: 0.1 for a quick run, 10 for an hour.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from burst import Bench, Scenario, assert_no_refusals, assert_nothing_left_out
from sandbox.hollow import Pace, Pause, Reporting

_SCALE = float(os.environ.get("TOPOWISE_BURST", "1"))


def scaled(pods: int) -> int:
    return max(50, round(pods * _SCALE / 10) * 10)


async def test_a_burst_of_two_thousand_pods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with Bench(Scenario(pods=scaled(2000)), tmp_path) as bench:
        await bench.feed()
        await conclude(bench, capsys)


async def test_exporters_that_are_half_a_minute_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = Reporting(wait=(25.0, 30.0), lag=(0.0, 2.0))
    scenario = Scenario(pods=scaled(500), seed=2, lifetimes=(2.0, 8.0), reporting=late)
    async with Bench(scenario, tmp_path) as bench:
        await bench.feed()
        await conclude(bench, capsys)


@pytest.mark.parametrize("sees", ["exporter", "halves"])
async def test_kubelets_on_slow_disks_whose_every_step_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sees: Literal["exporter", "halves"]
) -> None:
    pace = Pace(start=(0.0, 0.2), stop=(0.02, 0.2), pause=Pause((0.005, 0.05), (0.2, 1.0), 4))
    quick = Reporting(wait=(0.0, 0.02), lag=(0.0, 0.02), sees=sees)
    scenario = Scenario(pods=scaled(500), seed=8, pace=pace, reporting=quick)
    async with Bench(scenario, tmp_path) as bench:
        await bench.feed()
        await conclude(bench, capsys)


async def test_a_service_that_names_the_best_node_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with Bench(Scenario(pods=scaled(500), seed=10, best_nodes=1), tmp_path) as bench:
        await bench.feed()
        await conclude(bench, capsys)


async def test_kubelets_that_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with Bench(Scenario(pods=scaled(500), seed=9, lifetimes=(2.0, 8.0)), tmp_path) as bench:
        await bench.feed({0.3: bench.restart_kubelets, 0.7: bench.restart_kubelets})
        await conclude(bench, capsys)


async def test_a_service_that_is_killed_in_the_middle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with Bench(Scenario(pods=scaled(500), seed=3), tmp_path) as bench:
        await bench.feed({0.3: bench.restart_service, 0.6: bench.restart_service})
        await conclude(bench, capsys)


async def test_a_second_scheduler_that_is_blind_to_numa(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with Bench(Scenario(pods=scaled(500), blind_pods=scaled(120), seed=4), tmp_path) as bench:
        await bench.feed()
        await conclude(bench, capsys)


async def test_calls_that_move_to_another_replica(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with Bench(Scenario(pods=scaled(500), replicas=2, seed=5), tmp_path) as bench:
        await bench.feed({0.5: bench.fail_over})
        await conclude(bench, capsys)


async def test_urgent_pods_that_evict_other_pods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = Scenario(nodes=10, pods=scaled(500), urgent=0.15, forever=0.6, seed=6)
    async with Bench(scenario, tmp_path) as bench:
        await bench.feed()
        await conclude(bench, capsys)
        assert bench.scheduler.counts["victims"] > 0


async def test_bindings_that_overtake_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with Bench(Scenario(nodes=8, pods=scaled(400), slow_bindings=0.1, seed=7), tmp_path) as bench:
        await bench.feed()
        await conclude(bench, capsys)


async def test_a_burst_of_two_thousand_pods_that_are_nominated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Bench(Scenario(pods=scaled(2000), nominates=True, backlog=200), tmp_path) as bench:
        await bench.feed()
        await conclude_nominated(bench, capsys)


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(pods=500, seed=3),
        Scenario(pods=500, blind_pods=120, seed=4),
        Scenario(pods=500, replicas=2, seed=5),
        Scenario(nodes=10, pods=500, urgent=0.15, forever=0.6, seed=6),
        Scenario(nodes=8, pods=400, slow_bindings=0.1, seed=7),
    ],
    ids=["the service is killed", "a blind scheduler", "two replicas", "urgent pods", "slow bindings"],
)
async def test_chaos_in_a_burst_that_is_nominated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scenario: Scenario, request: pytest.FixtureRequest
) -> None:
    sizes = {"pods": scaled(scenario.pods), "blind_pods": scaled(scenario.blind_pods) if scenario.blind_pods else 0}
    nominating = msgspec.structs.replace(scenario, nominates=True, backlog=150, **sizes)
    async with Bench(nominating, tmp_path) as bench:
        halfway = {"the service is killed": bench.restart_service, "two replicas": bench.fail_over}
        fault = halfway.get(request.node.callspec.id)
        await bench.feed({} if fault is None else {0.5: fault})
        await conclude_nominated(bench, capsys)


async def conclude_nominated(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Concludes as the other bursts do; kube-scheduler has also honoured nominations."""
    metrics = [await service.metrics(bench.session) for service in bench.services]
    with capsys.disabled():
        for figures in metrics:
            said = {key: value for key, value in figures.items() if key.startswith("nominat") and value}
            sys.stdout.write(f"\n  {said}")
    assert sum(figures.get('nominations_total{outcome="honoured"}', 0) for figures in metrics) > 0
    assert all(figures["nominated_pods"] == 0 for figures in metrics), "room is booked for nobody"
    await conclude(bench, capsys)


async def conclude(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    figures = await bench.figures()
    with capsys.disabled():
        sys.stdout.write("\n" + "  ".join(f"{name} {value}" for name, value in figures.items()) + "\n")
        sys.stdout.writelines(f"  {times} attempts failed: {why}\n" for why, times in bench.errors.items())
    assert_no_refusals(bench)
    await assert_nothing_left_out(bench)
