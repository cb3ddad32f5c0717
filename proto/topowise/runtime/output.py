"""The only way to stdout and stderr except logs (log.py); the linter forbids the streams everywhere else.

Output for people consists of lines, and a line is escaped where it is written. So no command can write a name that
moves the cursor or forges a row. For all commands a deliberate error is one line on stderr and status 1, and a closed
pipe is no error.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from topowise.errors import TopowiseError
from topowise.runtime import clock
from topowise.text import Line, escaped, rendered

if TYPE_CHECKING:
    from topowise.runtime.config import Configuration


Body = str | Sequence[Line]
"""Lines for people, or a document in a format with its own escapes (documents.to_text)."""
_QUIET_S = 2.0
_BETWEEN_S = 1.0


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors quote the arguments escaped; its subcommands have the same class."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2."""
        super().error(escaped(message))


def note(line: Line) -> None:
    """Writes a line to stderr, unbuffered."""
    sys.stderr.write(rendered([line]))
    sys.stderr.flush()


def write(body: Body) -> None:
    """Writes to stdout, unbuffered."""
    sys.stdout.write(formatted(body))
    sys.stdout.flush()


def formatted(body: Body) -> str:
    """Returns the text that `write` writes."""
    return escaped(body, keep="\n\t") if isinstance(body, str) else rendered(body)


def encode(form: str) -> None:
    """Makes stdout accept every character: UTF-8 for `form` "utf-8", else escapes for what the encoding lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        if form:
            sys.stdout.reconfigure(encoding=form)
        else:
            sys.stdout.reconfigure(errors="backslashreplace")


def drop() -> None:
    """Redirects stdout to /dev/null: the interpreter flushes it once more at exit, and the reader is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def is_unicode() -> bool:
    """Whether stdout accepts more than ASCII."""
    return (sys.stdout.encoding or "").lower().startswith("utf")


class Progress:
    """Called at every step."""

    def __init__(self, clock: Callable[[], float] = clock.monotonic) -> None:
        self._clock = clock
        self._next = clock() + _QUIET_S

    def __call__(self, text: str) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + _BETWEEN_S
            note(f"{text} ...")


def add_config(parser: argparse.ArgumentParser, kind: str) -> None:
    """Adds the options of a daemon."""
    parser.add_argument("--config", required=True, metavar="FILE", help=kind)
    parser.add_argument("--check", action="store_true", help="only check whether the configuration is valid, and exit")


def check(options: argparse.Namespace, settings: Configuration) -> int:
    """Runs `--check`. Missing files are only warnings: they may exist on another machine."""
    from topowise.runtime.config import missing_files

    for line in missing_files(settings):
        note(f"warning: {options.config}: {line}")
    write([f"{options.config}: valid"])
    return 0


def run(parser: argparse.ArgumentParser, arguments: list[str] | None) -> int:
    """Parses the arguments and calls `command(options)`, which each subcommand has set. Returns the exit status."""
    options = parser.parse_args(arguments)
    try:
        status: int = options.command(options)
    except TopowiseError as exc:
        note(f"error: {exc}")
        return 1
    except BrokenPipeError:
        # The reader, such as `| head`, has closed the pipe.
        drop()
        return 0
    return status
