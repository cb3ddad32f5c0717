"""The terminal of a command, and the answer of a command. Commands themselves print nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from typing import NamedTuple

from topowise.runtime import output
from topowise.text import Styled

_PICTURE_COLUMNS = 100

GOOD, BAD, WARN, DIM, BOLD = "32", "31", "33", "2", "1"
"""SGR codes of the terminal's own colours, which suit light and dark."""


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
