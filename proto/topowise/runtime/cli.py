"""What all commands share: one line on stderr and status 1 for what went wrong on purpose, quiet for a closed pipe."""

from __future__ import annotations

import argparse
import sys

from topowise.errors import TopowiseError


def run(parser: argparse.ArgumentParser, arguments: list[str] | None) -> int:
    """Parses the arguments and calls `command(options)`, which each subcommand has set; the exit status."""
    options = parser.parse_args(arguments)
    try:
        status: int = options.command(options)
        sys.stdout.flush()
    except TopowiseError as exc:
        sys.stderr.write(f"error: {exc}\n")
        return 1
    except BrokenPipeError:
        # `| head` has seen enough; the interpreter would complain once more while it flushes.
        sys.stderr.close()
        return 0
    return status
