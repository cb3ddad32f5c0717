"""A trouble that shows in several ways in turn is said once for each of them, and again after a while."""

from __future__ import annotations

from topowise.runtime.log import OncePerChange


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_stays_the_same_is_said_once_for_ever() -> None:
    clock = Clock()
    once = OncePerChange(clock)
    assert once.is_change("refused")
    for clock.now in (1.0, 299.0, 301.0, 100_000.0):
        assert not once.is_change("refused")


def test_two_ways_in_turn_are_said_once_each_until_five_minutes_later() -> None:
    clock = Clock()
    once = OncePerChange(clock)
    said = []
    for second in range(301):
        clock.now = float(second)
        said.append(once.is_change("reset" if second % 2 else "refused"))
    assert [second for second, is_news in enumerate(said) if is_news] == [0, 1, 300]


def test_what_comes_after_the_end_is_news() -> None:
    once = OncePerChange(Clock())
    assert not once.clear()
    assert once.is_change("refused")
    assert once.last == "refused"
    assert once.clear()
    assert not once.clear()
    assert once.last == ""
    assert once.is_change("refused")


def test_texts_that_never_repeat_are_not_kept_for_ever() -> None:
    once = OncePerChange(Clock())
    for number in range(1000):
        assert once.is_change(f"attempt {number}")
    assert len(once._logged_at) <= 32


def test_what_comes_and_goes_is_said_once_and_so_is_its_end() -> None:
    clock = Clock()
    once = OncePerChange(clock)
    said = []
    for second in range(200):
        clock.now = float(second)
        said.append((once.is_change("refused"), once.over()))
    assert said[0] == (True, True)
    assert set(said[1:]) == {(False, False)}
    # It has come to stay: the log must not end with its end.
    clock.now = 250.0
    assert not once.is_change("refused")
    clock.now = 300.0
    assert once.is_change("refused")
    clock.now = 1000.0
    assert not once.is_change("refused")


def test_the_end_is_said_although_the_last_text_is_known() -> None:
    """A kubelet that restarts: no socket, a socket that refuses, no socket, and back."""
    once = OncePerChange(Clock())
    assert [once.is_change(text) for text in ("no socket", "refused", "no socket")] == [True, True, False]
    assert once.over()
    assert not once.over()
    # Both texts are known, so the log says nothing of this time.
    assert [once.is_change(text) for text in ("refused", "no socket")] == [False, False]
    assert not once.over()
