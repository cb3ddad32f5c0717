"""`make soak` in small: some random clusters on simulated time, and what goes wrong there has a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandbox import simulated_time
from soak import play
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.node_state import NodeState


@pytest.mark.parametrize("seed", [1, 4, 7, 8])
def test_whatever_goes_wrong_has_a_reason(seed: int) -> None:
    tally = play(seed, pods=24)
    assert tally.decisions >= 20
    assert tally.bound >= 10
    assert tally.unexplained == 0, "\n".join(tally.evidence)


def test_a_seed_gives_the_same_twice() -> None:
    assert play(4, pods=12).lines() == play(4, pods=12).lines()


def _goes_on_as_if_it_were_there(self: Ledger, uid: str) -> None:
    return


def test_a_planted_fault_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "drop_pod", _goes_on_as_if_it_were_there)
    tally = play(4, pods=24)
    assert tally.left_out[""] > 0
    assert "waits beside" in "".join(tally.evidence)


def _refuses_nobody(self: Answers, asked: Any, outcomes: Any, words: Any) -> None:
    return


def _has_not_changed(self: NodeState, uid: str) -> bool:
    return True


def test_nor_has_one_that_lets_pods_onto_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answers, "_judge", _refuses_nobody)
    monkeypatch.setattr(NodeState, "is_as_judged", _has_not_changed)
    assert play(4, pods=24).refused[""] > 0


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
