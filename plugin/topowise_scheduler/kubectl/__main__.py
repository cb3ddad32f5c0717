"""kubectl-topowise, which kubectl runs as `kubectl topowise`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from topowise import __version__
from topowise.errors import TopowiseError
from topowise.runtime import output
from topowise_scheduler.kubectl import arguments

if TYPE_CHECKING:
    from topowise_scheduler.kubectl.console import Output

_TROUBLE = 2
_DOCUMENTS = ("json", "yaml", "svg")


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    try:
        answer = _answer(words or ["help"])
        output.write(answer.body)
    except TopowiseError as exc:
        output.note(f"error: {exc}")
        return _TROUBLE
    except ModuleNotFoundError as exc:
        if exc.name != "numpy":
            raise
        # The file for laptops is without it.
        output.note(f"error: {words[0]}: needs numpy, expected it in {sys.executable}: python3 -m pip install numpy")
        return _TROUBLE
    except BrokenPipeError:
        # `| head` has seen enough.
        output.drop()
        return 0
    except KeyboardInterrupt:
        return 130
    for note in answer.notes:
        output.note(note)
    return answer.status


def _answer(words: list[str]) -> Output:
    from topowise_scheduler.kubectl import console

    parser = arguments.parser(__version__)
    options: argparse.Namespace = parser.parse_args(arguments.in_order(words, parser))
    if options.command == "help":
        # It prints, and ends the program.
        parser.parse_args([*([options.about] if options.about else []), "--help"])
    # What programs read is UTF-8 whatever the terminal's encoding is, and no name is worth a crash.
    output.encode("utf-8" if getattr(options, "output", "") in _DOCUMENTS else "")
    command = importlib.import_module(f"topowise_scheduler.kubectl.{options.command}")
    run: Callable[[argparse.Namespace, console.Console], Output] = command.run
    return run(options, console.of_this_process())


if __name__ == "__main__":
    sys.exit(main())
