"""Sizes for the two media of a layout, pixels of an SVG and characters of a terminal; the width of texts, and how to
shorten them.

The viewer chooses the font. So widths are upper bounds over the fonts that systems have for the two families, and a
text that fits by them fits in the picture.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from topowise_scheduler.explain.picture.scene import Style

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
MIN_COLUMNS: Final = 24


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


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in the unit of the medium; `_x` is horizontal, `_y` vertical.

    `width` is that of the whole picture, None if it follows the zones. `cell_ids`: the cell of a CPU has space for its
    id; if not, a row of cells begins with the id of its first CPU. `heading_on_edge`: the heading of a frame is on its
    upper edge.
    """

    faces: dict[Style, Face]
    width: int | None
    ascii_only: bool = False
    margin: int
    space: int
    """Between elements of a line."""
    gap_x: int
    gap_y: int
    """Between frames."""
    pad_x: int
    pad_y: int
    """Within a frame."""
    panel_x: int
    panel_y: int
    """Within a panel, which has a frame only in pixels."""
    heading_on_edge: bool
    section: int
    """Between the parts of a frame."""
    after_caption: int
    cell_ids: bool
    cell_y: int
    cell_pad: int
    core_pad: int
    core_gap: int
    cache_pad: int
    cache_gap: int
    bar_y: int
    chip_y: int
    chip_pad: int
    chip_gap: int
    max_chips: int
    """The most devices of a resource in a zone that are chips with ids; more are cells."""
    marks_free: bool
    """Whether the chip of a free device has a mark before its id."""
    zones_across: int
    cores_across: tuple[int, ...]
    """The cores in a row for 1, 2, ... zones across."""
    min_zone: int
    max_zone: int
    min_canvas: int
    entry: int
    """The width a pod needs in the legend."""
    side: int
    """The least width of the column beside the pods."""

    @property
    def ellipsis(self) -> str:
        """What stands for the middle of a text."""
        return "..." if self.ascii_only else "…"

    @property
    def separator(self) -> str:
        """Between facts of a line."""
        return "; " if self.ascii_only else " · "


PIXELS: Final = Measures(
    faces={
        "node": Face("sans", 22, 30, is_bold=True),
        "about": Face("sans", 13, 20),
        "heading": Face("sans", 14, 20, is_bold=True),
        "aside": Face("sans", 11, 16),
        "caption": Face("sans", 12, 18),
        "figure": Face("sans", 12, 18),
        "note": Face("sans", 10, 14),
        "name": Face("mono", 12, 18),
        "id": Face("mono", 9, 12),
        "tag": Face("mono", 10, 12, is_bold=True),
    },
    width=None,
    margin=28,
    space=10,
    gap_x=18,
    gap_y=18,
    pad_x=16,
    pad_y=12,
    panel_x=16,
    panel_y=12,
    heading_on_edge=False,
    section=12,
    after_caption=3,
    cell_ids=True,
    cell_y=16,
    cell_pad=4,
    core_pad=2,
    core_gap=4,
    cache_pad=5,
    cache_gap=6,
    bar_y=16,
    chip_y=18,
    chip_pad=5,
    chip_gap=5,
    marks_free=False,
    max_chips=16,
    zones_across=4,
    cores_across=(12, 10, 8, 8),
    min_zone=320,
    max_zone=900,
    min_canvas=520,
    entry=350,
    side=250,
)


def characters(width: int, *, ascii_only: bool = False) -> Measures:
    """Measures of a terminal of this width, at least MIN_COLUMNS."""
    face = Face("cells", 1, 1)
    return Measures(
        faces=dict.fromkeys(PIXELS.faces, face),
        width=max(MIN_COLUMNS, width),
        ascii_only=ascii_only,
        margin=0,
        space=2,
        gap_x=1,
        gap_y=0,
        pad_x=2,
        pad_y=1,
        panel_x=0,
        panel_y=0,
        heading_on_edge=True,
        section=0,
        after_caption=0,
        cell_ids=False,
        cell_y=1,
        cell_pad=0,
        core_pad=0,
        core_gap=0,
        cache_pad=0,
        cache_gap=1,
        bar_y=1,
        chip_y=1,
        chip_pad=1,
        chip_gap=1,
        marks_free=True,
        max_chips=8,
        zones_across=4,
        cores_across=(64, 64, 64, 64),
        min_zone=36,
        max_zone=76,
        min_canvas=0,
        entry=38,
        side=28,
    )
