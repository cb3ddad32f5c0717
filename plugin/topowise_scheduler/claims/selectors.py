"""CEL expressions of device selectors."""

from __future__ import annotations


class Selectors:
    """Compiled CEL expressions and their results, bounded by `most_bytes`."""

    def __init__(self, most_bytes: int = 16 << 20) -> None:
        self._most_bytes = most_bytes
