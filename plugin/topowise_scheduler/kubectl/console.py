"""The terminal of a command, its answer, and the forms that kubectl gives to tables and durations.

Commands themselves print nothing. Sources: k8s.io/apimachinery/pkg/util/duration (HumanDuration), time.ParseDuration.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from topowise.runtime import output
from topowise.text import Line, Styled, escaped

_PICTURE_COLUMNS = 100

GOOD, BAD, WARN, DIM, BOLD = "32", "31", "33", "2", "1"
"""SGR codes of the terminal's own colours, which suit light and dark."""
_GAP: Final = "   "
_NARROWEST: Final = 24
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY
_GO_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_GO_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)", re.ASCII)


class Console(NamedTuple):
    """The terminal. `width` is None in a pipe, where each row is a line of any length.

    `columns` is the width of pictures, in a pipe as well. `now` is seconds since 1970.
    """

    width: int | None = None
    columns: int = _PICTURE_COLUMNS
    is_colour: bool = False
    is_ascii: bool = False
    now: float = 0.0

    def paint(self, text: str, code: str) -> str | Styled:
        """The text in a colour, if there are colours."""
        return Styled(text, code) if self.is_colour and code and text else text


class Output(NamedTuple):
    """The text for stdout, the exit status, and lines for stderr."""

    body: output.Body
    status: int = 0
    notes: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The body as it is written."""
        return output.formatted(self.body)


def of_this_process() -> Console:
    """The console of stdout, by the conventions of no-color.org."""
    is_terminal = output.is_terminal()
    columns = shutil.get_terminal_size((_PICTURE_COLUMNS, 24)).columns
    return Console(
        width=columns if is_terminal else None,
        columns=columns,
        is_colour=is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
        is_ascii=not output.is_unicode(),
        now=time.time(),
    )


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
        parts = [last]
        if room is not None and len(last) > room:
            parts = textwrap.wrap(last, room, break_long_words=False, break_on_hyphens=False)
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


def seconds_since(timestamp: str, now: float) -> float | None:
    """Seconds since an RFC 3339 time; None for an invalid text."""
    try:
        return now - datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return None


def age(timestamp: str, now: float) -> str:
    """ "3m20s" since an RFC 3339 time; "-" for an invalid text."""
    seconds = seconds_since(timestamp, now)
    return "-" if seconds is None else human(int(max(0, seconds)))


def human(seconds: int) -> str:
    """A duration of two units at most."""
    if seconds < 2 * _MINUTE:
        return f"{seconds}s"
    if seconds < 3 * _HOUR:
        return _two(seconds, _MINUTE, "m", 1, "s", 10)
    if seconds < 2 * _DAY:
        return _two(seconds, _HOUR, "h", _MINUTE, "m", 8)
    if seconds < 2 * _YEAR:
        return _two(seconds, _DAY, "d", _HOUR, "h", 8)
    return _two(seconds, _YEAR, "y", _DAY, "d", 8)


def go_seconds(text: Any) -> float | None:
    """The seconds of "1m30s"; None for an invalid text, or for 0, which means "not set"."""
    if not isinstance(text, str) or not re.fullmatch(f"(?:{_GO_PART.pattern})+", text, re.ASCII):
        return None
    return sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_PART.findall(text)) or None


def _two(seconds: int, unit: int, name: str, smaller: int, its_name: str, until: int) -> str:
    """The smaller unit is shown only below `until` larger units."""
    count, rest = divmod(seconds, unit)
    less = rest // smaller if count < until else 0
    return f"{count}{name}{less}{its_name}" if less else f"{count}{name}"
