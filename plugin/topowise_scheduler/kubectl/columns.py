"""Columns as kubectl prints them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Final

_GAP: Final = "   "
_NARROWEST: Final = 24

Paint = Callable[[int, str], str]
"""From the number of a column and the text of a cell to the text with colours, which take no room."""


def columns(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    indent: str = "",
    width: int | None = None,
    paint: Paint | None = None,
) -> str:
    """Left-aligned columns three spaces apart; the last is as long as it is, or wrapped to `width`."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    before = len(indent) + sum(widths[:-1]) + len(_GAP) * (len(header) - 1)
    room = None if width is None else max(_NARROWEST, width - before)
    lines = []
    for number, row in enumerate(table):
        *first, last = row
        parts = [last] if room is None or len(last) <= room else _wrapped(last, room)
        for at, part in enumerate(parts):
            cells = [*(first if not at else [""] * len(first)), part]
            if paint is not None and number:
                padded = [_painted(paint, column, cell, widths[column]) for column, cell in enumerate(cells)]
            else:
                padded = [cell.ljust(size) for cell, size in zip(cells, widths, strict=True)]
            lines.append((indent + _GAP.join(padded)).rstrip())
    return "\n".join(lines)


def width_of(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How wide the table is."""
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _painted(paint: Paint, column: int, cell: str, size: int) -> str:
    return paint(column, cell) + " " * (size - len(cell))


def _wrapped(text: str, room: int) -> list[str]:
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
