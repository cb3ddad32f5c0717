"""Shared by all commands: a deliberate error is one line on stderr and status 1; a closed pipe is no error."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from topowise.errors import TopowiseError
from topowise.runtime import output

if TYPE_CHECKING:
    from topowise.runtime.config import Configuration


def add_config(parser: argparse.ArgumentParser, kind: str) -> None:
    """Adds the options of a daemon."""
    parser.add_argument("--config", required=True, metavar="FILE", help=kind)
    parser.add_argument("--check", action="store_true", help="only check whether the configuration is valid, and exit")


def check(options: argparse.Namespace, settings: Configuration) -> int:
    """Runs `--check`. Missing files are only warnings: they may exist on another machine."""
    from topowise.runtime.config import missing_files

    for line in missing_files(settings):
        output.note(f"warning: {options.config}: {line}")
    output.write([f"{options.config}: valid"])
    return 0


def run(parser: argparse.ArgumentParser, arguments: list[str] | None) -> int:
    """Parses the arguments and calls `command(options)`, which each subcommand has set. Returns the exit status."""
    options = parser.parse_args(arguments)
    try:
        status: int = options.command(options)
    except TopowiseError as exc:
        output.note(f"error: {exc}")
        return 1
    except BrokenPipeError:
        # The reader, such as `| head`, has closed the pipe.
        output.drop()
        return 0
    return status
