"""Tables as kubectl prints them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from topowise.text import Line, Styled, escaped

_GAP: Final = "   "
_NARROWEST: Final = 24

Paint = Callable[[int, str], str | Styled]
"""Returns the coloured text of a cell, from the number of its column and its text; colours take no width."""


def columns(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    indent: str = "",
    width: int | None = None,
    paint: Paint | None = None,
) -> list[Line]:
    """Lines of left-aligned columns, three spaces apart; the last column is wrapped to `width`, if it is given."""
    table = [[escaped(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    before = len(indent) + sum(widths[:-1]) + len(_GAP) * (len(header) - 1)
    room = None if width is None else max(_NARROWEST, width - before)
    lines: list[Line] = []
    for number, row in enumerate(table):
        *first, last = row
        parts = [last] if room is None or len(last) <= room else _wrapped(last, room)
        for at, part in enumerate(parts):
            cells = [*(first if not at else [""] * len(first)), part]
            lines.append(_line(indent, cells, widths, paint if number else None))
    return lines


def paragraphs(texts: Iterable[Sequence[Line]]) -> list[Line]:
    """Lines of several texts, with an empty line between them."""
    lines: list[Line] = []
    for text in texts:
        lines += ["", *text] if lines else text
    return lines


def width_of(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width of the table."""
    widths = [max(len(escaped(row[at])) for row in (header, *rows)) for at in range(len(header))]
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(indent: str, cells: Sequence[str], widths: Sequence[int], paint: Paint | None) -> Line:
    """The cells of a line, without trailing blanks."""
    # What is right of the last text.
    count = max((at + 1 for at, cell in enumerate(cells) if cell.strip()), default=0)
    parts: list[str | Styled] = [indent] if count else []
    for column, cell in enumerate(cells[:count]):
        is_last = column == count - 1
        cell = cell.rstrip() if is_last else cell
        painted = cell if paint is None else paint(column, cell)
        parts += [painted] if is_last else [painted, " " * (widths[column] - len(cell)) + _GAP]
    return "".join(map(str, parts)) if paint is None else parts


def _wrapped(text: str, room: int) -> list[str]:
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
