"""`make soak` in small: some random clusters on simulated time, and what goes wrong there has a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sandbox import simulated_time
from soak import play
from topowise_scheduler.cluster.ledger import Ledger


@pytest.mark.parametrize("seed", [3, 4])
def test_whatever_goes_wrong_has_a_reason(seed: int) -> None:
    tally = play(seed, pods=40)
    assert tally.decisions >= 50
    assert tally.bound >= 10
    assert tally.unexplained == 0, "\n".join(tally.evidence)


def test_a_seed_gives_the_same_twice() -> None:
    one, other = play(5, pods=20), play(5, pods=20)
    assert one.lines() == other.lines()


def _assumes_whatever_it_is_asked(self: Ledger, record: Any, needs: Any, node: str) -> str:
    return ""


def _forgets_reservations(self: Ledger, *_: Any, **__: Any) -> None:
    return


@pytest.mark.parametrize(
    ("name", "fault"), [("assume", _assumes_whatever_it_is_asked), ("reserve", _forgets_reservations)]
)
def test_a_planted_fault_has_none(name: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, name, fault)
    assert any(play(seed, pods=60).refused[""] for seed in range(10))


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
