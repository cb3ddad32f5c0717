"""The only way to stdout and stderr, logs apart (log.py); the linter bans the streams everywhere else.

What people read is lines, and a line is escaped where it is written. So a new command cannot write a name that moves
the cursor or forges a row, whatever it forgets.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from topowise.text import Line, escaped, rendered

Body = str | Sequence[Line]
"""Lines for people, or a document in a format that has escapes of its own (documents.spell)."""


class Parser(argparse.ArgumentParser):
    """A parser of arguments whose errors quote these arguments escaped; its subcommands have the same class."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2."""
        super().error(escaped(message))


def note(line: Line) -> None:
    """Writes one line to stderr, at once."""
    sys.stderr.write(rendered([line]))
    sys.stderr.flush()


def write(body: Body) -> None:
    """Writes to stdout, at once."""
    _write(spelled(body))


def spelled(body: Body) -> str:
    """What `write` writes."""
    return escaped(body, keep="\n\t") if isinstance(body, str) else rendered(body)


def clear_screen() -> None:
    """Makes an empty terminal of a full one, with the cursor at the top."""
    _write("\x1b[H\x1b[2J\x1b[3J")


def encode(form: str) -> None:
    """Makes stdout take every character: UTF-8 for `form` "utf-8", else escapes beyond the encoding of the terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        if form:
            sys.stdout.reconfigure(encoding=form)
        else:
            sys.stdout.reconfigure(errors="backslashreplace")


def drop() -> None:
    """Makes stdout take the rest without a reader: the interpreter flushes it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def is_unicode() -> bool:
    """Whether stdout takes more than ASCII."""
    return (sys.stdout.encoding or "").lower().startswith("utf")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
