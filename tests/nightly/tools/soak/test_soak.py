"""`make soak` in small: some random clusters on simulated time, and what goes wrong there has a reason."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox import simulated_time
from soak import play
from topowise_scheduler.ledger.gates.capacity import CapacityGate
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.node_reports import NodeReports

REPOSITORY = Path(__file__).resolve().parents[4]


def test_whatever_goes_wrong_has_a_reason() -> None:
    """By its own process, as the order of sets is to be the same each time."""
    command = [sys.executable, str(REPOSITORY / "hack/soak"), "--seed", "7", "--clusters", "3", "--pods", "24"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on 3 clusters" in done.stdout
    assert int(re.findall(r"(\d+) decisions on", done.stdout)[0]) >= 100


def test_a_seed_gives_the_same_twice() -> None:
    assert play(4, pods=12).lines() == play(4, pods=12).lines()


def _goes_on_as_if_it_were_there(self: Ledger, uid: str, *, keep_refusal: bool = False) -> None:
    return


def test_a_planted_fault_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "_forget", _goes_on_as_if_it_were_there)
    tally = play(4, pods=24)
    assert tally.left_out[""] > 0
    assert "was not let onto" in tally.evidence[0]


def _refuses_no_pod(self: CapacityGate, question: Any, draft: Any) -> None:
    return


def _has_not_changed(self: NodeState, uid: str) -> bool:
    return True


def test_nor_has_a_service_that_lets_pods_onto_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapacityGate, "verdicts", _refuses_no_pod)
    monkeypatch.setattr(NodeState, "is_as_judged", _has_not_changed)
    assert play(4, pods=24).refused[""] > 0


def test_what_a_daemon_would_log_and_live_on_after_breaks_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: NodeReports, report: object) -> None:
        raise KeyError("gpu0")

    monkeypatch.setattr(NodeReports, "put", fails)
    with pytest.raises(AssertionError, match="gpu0"):
        play(4, pods=12)


def test_an_hour_takes_no_time() -> None:
    async def hour() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(1800))
        return loop.time() - began

    assert simulated_time.run(hour()) == pytest.approx(3600)


def test_waiting_for_nothing_is_an_error_and_not_for_ever() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(simulated_time.StuckError):
        simulated_time.run(stuck())
