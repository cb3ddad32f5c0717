"""How long pods wait beside room is measured, and has limits."""

from __future__ import annotations

from soak import Tally, judgement
from soak.waits import ALL, Limit, Waits, breaches, limits

ENOUGH = 10_000


def test_a_wait_ends_with_the_next_answer_and_is_summed_up_by_pod() -> None:
    waits = Waits()
    waits.begin("a", "one", 1.0)
    waits.begin("a", "two", 3.0)
    waits.end("a", 7.0)
    waits.begin("a", "one", 10.0)
    waits.begin("b", "one", 10.0)
    assert waits.seconds(20.0, {"b": 11.0}) == {"one": [12.0, 1.0], "two": [4.0], ALL: [16.0, 1.0]}


def test_what_exceeds_a_limit_is_said() -> None:
    allowed = {ALL: Limit(percent=10.0, p50=1.0, p90=2.0, max=9.0), "known": Limit(max=100.0)}
    assert not list(breaches(ENOUGH, {"why": 1000}, {"why": [1.0] * 300, ALL: [1.0] * 300}, allowed))
    assert "10.01 % of all decisions" in next(breaches(ENOUGH, {"why": 1001}, {"why": [1.0]}, allowed))
    assert "p50 of the waits is 1.5 s" in next(breaches(ENOUGH, {}, {"why": [1.5] * 300}, allowed))
    assert "p90 of the waits is 3.0 s" in next(breaches(ENOUGH, {}, {"why": [1.0] * 200 + [3.0] * 100}, allowed))
    assert "max of the waits is 9.5 s" in next(breaches(1, {}, {"why": [9.5]}, allowed))
    assert not list(breaches(1, {}, {"known": [9.5]}, allowed))


def test_every_limit_is_of_a_cause_that_there_is_and_bounds_something() -> None:
    causes = {ALL, *judgement.FATES.values(), *(value for value in vars(judgement).values() if isinstance(value, str))}
    for cause, limit in limits().items():
        assert cause in causes
        assert limit.percent < 100, cause
        assert max(limit.p50, limit.p90) < limit.max < float("inf"), cause


def test_a_pod_that_is_kept_waiting_for_ten_minutes_breaks_the_run() -> None:
    """Even by a text that has a cause."""
    tally = Tally(decisions=10, kept_waiting={"why": 1}, seconds={"why": [600.0], ALL: [600.0]})
    assert tally.breaches(limits())
