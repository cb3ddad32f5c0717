"""A trouble that shows in several ways in turn is said once for each of them, and again after a while."""

from __future__ import annotations

from topowise.runtime.told import Told


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_stays_the_same_is_said_once_for_ever() -> None:
    clock = Clock()
    told = Told(clock)
    assert told.is_news("refused")
    for clock.now in (1.0, 299.0, 301.0, 100_000.0):
        assert not told.is_news("refused")


def test_two_ways_in_turn_are_said_once_each_until_five_minutes_later() -> None:
    clock = Clock()
    told = Told(clock)
    said = []
    for second in range(301):
        clock.now = float(second)
        said.append(told.is_news("reset" if second % 2 else "refused"))
    assert [second for second, is_news in enumerate(said) if is_news] == [0, 1, 300]


def test_what_comes_after_the_end_is_news() -> None:
    told = Told(Clock())
    assert not told.settle()
    assert told.is_news("refused")
    assert told.last == "refused"
    assert told.settle()
    assert not told.settle()
    assert told.last == ""
    assert told.is_news("refused")


def test_texts_that_never_repeat_are_not_kept_for_ever() -> None:
    told = Told(Clock())
    for number in range(1000):
        assert told.is_news(f"attempt {number}")
    assert len(told._said) <= 32


def test_what_comes_and_goes_is_said_once_and_so_is_its_end() -> None:
    clock = Clock()
    told = Told(clock)
    said = []
    for second in range(200):
        clock.now = float(second)
        said.append((told.is_news("refused"), told.over()))
    assert said[0] == (True, True)
    assert set(said[1:]) == {(False, False)}
    # It has come to stay: the log must not end with its end.
    clock.now = 250.0
    assert not told.is_news("refused")
    clock.now = 300.0
    assert told.is_news("refused")
    clock.now = 1000.0
    assert not told.is_news("refused")
