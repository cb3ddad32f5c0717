"""What has changed, in order, so that whoever keeps something of it looks only at what changed since.

Invariant: a name is in here once, behind all that changed before it did last.
"""

from __future__ import annotations

from collections.abc import Iterator


class Changes:
    """Names, each with the number of its last change. Not thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        """How many changes there were."""
        self._last: dict[str, int] = {}

    def note(self, name: str) -> None:
        """It has changed."""
        self.count += 1
        self._last.pop(name, None)
        self._last[name] = self.count

    def forget(self, name: str) -> None:
        """There is no such thing any more."""
        self._last.pop(name, None)

    def at(self, name: str) -> int:
        """What `count` was when it changed last, 0 if it never did."""
        return self._last.get(name, 0)

    def since(self, count: int) -> Iterator[str]:
        """What has changed after `count`, the last first. Nothing may change while this goes on."""
        for name in reversed(self._last):
            if self._last[name] <= count:
                return
            yield name
