"""Names of changed objects in the order of their last change, so that a reader visits only what changed since.

Invariant: a name is kept once, at the position of its last change.
"""

from __future__ import annotations

from collections.abc import Iterator


class Changes:
    """Names, each with the number of its last change. Not thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        """Number of changes so far, ends of objects included."""
        self._last: dict[str, int] = {}

    def note(self, name: str) -> None:
        """Records a change of the named object."""
        self.count += 1
        # Removed and inserted again, because a dict keeps the position of an existing key.
        self._last.pop(name, None)
        self._last[name] = self.count

    def forget(self, name: str) -> None:
        """Forgets an object that does not exist any more, which is a change too."""
        self.count += 1
        self._last.pop(name, None)

    def at(self, name: str) -> int:
        """Returns `count` at the last change of the object, 0 if it never changed."""
        return self._last.get(name, 0)

    def since(self, count: int) -> Iterator[str]:
        """Yields what has changed after `count`, the newest first. The caller records no change meanwhile."""
        for name in reversed(self._last):
            if self._last[name] <= count:
                return
            yield name
