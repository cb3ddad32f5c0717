"""Reports the present step on stderr each second, for work that takes longer than two seconds."""

from __future__ import annotations

from collections.abc import Callable

from topowise.runtime import clock, output

_QUIET_S = 2.0
_BETWEEN_S = 1.0


class Progress:
    """Called at every step."""

    def __init__(self, clock: Callable[[], float] = clock.monotonic) -> None:
        self._clock = clock
        self._next = clock() + _QUIET_S

    def __call__(self, text: str) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + _BETWEEN_S
            output.note(f"{text} ...")
