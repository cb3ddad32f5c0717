"""The width of texts, and how to shorten them.

The viewer chooses the font. So widths are upper bounds over the fonts that systems have for the two families, and a
text that fits by them fits in the picture.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

Family = Literal["cells", "mono", "sans"]

# Thousandths of the font size. Monospace: Courier, DejaVu and Menlo have 600 to 602. Sans: the widest of Segoe UI,
# San Francisco, Roboto, DejaVu Sans and Liberation Sans, which DejaVu mostly is.
_MONO: Final = 610
_SANS: Final = {
    **dict.fromkeys("il", 320),
    **dict.fromkeys(" ,.:;'|", 360),
    **dict.fromkeys("Ifjrt()[]-/·!", 430),
    **dict.fromkeys("ABEFKPRSTVXYZ", 730),
    **dict.fromkeys("CDGHNOQUw&", 830),
    **dict.fromkeys("+=<>~#^×", 850),
    **dict.fromkeys("mMW@%…", 1000),
}
_SANS_OTHER: Final = 650
_WIDE: Final = 1020
_BOLD_PERMILLE: Final = 1160


class Face(msgspec.Struct, frozen=True, gc=False):
    """A font. The unit is that of the picture: characters for "cells", which have a size of 1, else pixels."""

    family: Family
    size: int
    line: int
    is_bold: bool = False

    def width(self, text: str) -> int:
        """An upper bound, rounded up."""
        if self.family == "cells":
            return sum(map(_cells, text))
        permille = sum(self._permille(character) for character in text)
        if self.is_bold and self.family == "sans":
            permille = permille * _BOLD_PERMILLE // 1000
        return -(-permille * self.size // 1000)

    def _permille(self, character: str) -> int:
        cells = _cells(character)
        if cells != 1 or ord(character) > 0x2FFF:
            return _WIDE if cells else 0
        return _MONO if self.family == "mono" else _SANS.get(character, _SANS_OTHER)

    def elided(self, text: str, room: int, ellipsis: str = "…") -> str:
        """`text` if it fits, else its beginning and its end; "" if not even the ellipsis fits."""
        if self.width(text) <= room:
            return text
        low, high = 0, len(text)
        while low < high:
            length = (low + high + 1) // 2
            if self.width(_halves(text, length, ellipsis)) <= room:
                low = length
            else:
                high = length - 1
        short = _halves(text, low, ellipsis)
        return short if self.width(short) <= room else ""

    def flowed(self, parts: Iterable[str], room: int, separator: str, ellipsis: str = "…") -> list[str]:
        """Lines of parts; a part is never broken, but elided if it is wider than a line."""
        lines: list[str] = []
        for part in parts:
            short = self.elided(part, room, ellipsis)
            joined = f"{lines[-1]}{separator}{short}" if lines else short
            if lines and self.width(joined) <= room:
                lines[-1] = joined
            else:
                lines.append(short)
        return lines


def widest(face: Face, texts: Sequence[str]) -> int:
    """The width of the widest of these texts, 0 for none."""
    return max(map(face.width, texts), default=0)


def _cells(character: str) -> int:
    """The cells a terminal gives a character."""
    if character.isascii():
        return 1
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _halves(text: str, length: int, ellipsis: str) -> str:
    tail = length // 2
    return f"{text[: length - tail]}{ellipsis}{text[len(text) - tail :]}"
