"""Log once per change: what was said not long ago is remembered, so that a trouble that shows in two ways in turn is
not said each time it shows.

A server that is half gone resets one connection and refuses the next; a log that says each change of the words says a
line a try then, for as long as the trouble lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from topowise.bounded import Bounded

_AGAIN_S: Final = 300.0
_MOST: Final = 32
_MOST_BYTES: Final = 1 << 18


class OncePerChange:
    """Texts with the time at which they were said. `clock` is monotonic, `again` seconds after which one is logged
    again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, again: float = _AGAIN_S) -> None:
        self._clock = clock
        self._again = again
        self._last, self._is_said = "", False
        self._said: Bounded[str, float] = Bounded(_MOST_BYTES, lambda text, _: len(text), _MOST)

    @property
    def last(self) -> str:
        """The present text, "" for none."""
        return self._last

    def is_change(self, text: str) -> bool:
        """Whether to say a text: it was not said since another one, or for a while. Then it counts as said."""
        if text == self._last and self._is_said:
            return False
        self._last = text
        now = self._clock()
        said_at = self._said.get(text)
        self._is_said = said_at is None or now - said_at >= self._again
        if self._is_said:
            self._said.put(text, now)
        return self._is_said

    def over(self) -> bool:
        """The trouble is over, perhaps not for long: whether its end is worth saying. What was said is remembered."""
        was, self._last, self._is_said = self._is_said, "", False
        return was

    def clear(self) -> bool:
        """The trouble is over: whether there was one. What was said is forgotten."""
        was, self._last, self._is_said = bool(self._last), "", False
        self._said.clear()
        return was
