"""Logs a problem once per change: recent texts are remembered, so that a problem that alternates between two texts is
not logged each time.

Example: a half-dead server resets one connection and refuses the next. A log of every change would have a line per try
for as long as the problem lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from topowise.bounded import Bounded
from topowise.runtime import clock

_AGAIN_S: Final = 300.0
_MOST: Final = 32
_MOST_BYTES: Final = 1 << 18


class OncePerChange:
    """Remembers when texts were logged. `clock` is monotonic; after `again` seconds a text is logged again."""

    def __init__(self, clock: Callable[[], float] = clock.monotonic, again: float = _AGAIN_S) -> None:
        self._clock = clock
        self._again = again
        # Whether the present text was logged, and whether any text of the present problem was.
        self._last, self._is_logged, self._is_open = "", False, False
        self._logged_at: Bounded[str, float] = Bounded(_MOST_BYTES, lambda text, _: len(text), _MOST)

    @property
    def last(self) -> str:
        """The present text, "" for none."""
        return self._last

    def is_change(self, text: str) -> bool:
        """Returns whether to log a text: it was not logged recently. Then it counts as logged."""
        if text == self._last and self._is_logged:
            return False
        self._last = text
        now = self._clock()
        logged_at = self._logged_at.get(text)
        self._is_logged = logged_at is None or now - logged_at >= self._again
        if self._is_logged:
            self._is_open = True
            self._logged_at.put(text, now)
        return self._is_logged

    def over(self) -> bool:
        """Notes that the problem is over, perhaps not for long. Returns whether to log its end: its begin, or a change
        since then, was logged. Logged texts are remembered."""
        is_open = self._is_open
        self._last, self._is_logged, self._is_open = "", False, False
        return is_open

    def clear(self) -> bool:
        """Notes that the problem is over. Returns whether there was a problem. Logged texts are forgotten."""
        was = bool(self._last)
        self._last, self._is_logged, self._is_open = "", False, False
        self._logged_at.clear()
        return was
