"""kubectl-topowise, found by kubectl as `kubectl topowise`."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from topowise import __version__
from topowise.errors import TopowiseError
from topowise_scheduler.kubectl import arguments

if TYPE_CHECKING:
    from topowise_scheduler.kubectl.console import Answer

_TROUBLE = 2
_DOCUMENTS = ("json", "yaml", "svg")


def main(argv: list[str] | None = None) -> int:
    """The command line; its exit status."""
    given = sys.argv[1:] if argv is None else argv
    try:
        answer = _answer(given or ["help"])
        sys.stdout.write(answer.text)
        sys.stdout.flush()
    except TopowiseError as exc:
        sys.stderr.write(f"error: {exc}\n")
        return _TROUBLE
    except ModuleNotFoundError as exc:
        if exc.name != "numpy":
            raise
        # The file for laptops is without it.
        sys.stderr.write(
            f"error: {given[0]}: needs numpy, expected it in {sys.executable}: python3 -m pip install numpy\n"
        )
        return _TROUBLE
    except BrokenPipeError:
        # `| head` has seen enough; the interpreter would complain once more while it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    for note in answer.notes:
        sys.stderr.write(f"{note}\n")
    return answer.status


def _answer(given: list[str]) -> Answer:
    from topowise_scheduler.kubectl import console

    if given[:1] == ["__complete"]:
        from topowise_scheduler.kubectl import completion

        return completion.complete(given[1:], arguments.parser(__version__))
    parser = arguments.parser(__version__)
    options: argparse.Namespace = parser.parse_args(given)
    if options.command == "help":
        # It prints, and ends the program.
        parser.parse_args([*([options.about] if options.about else []), "--help"])
    _encode(getattr(options, "output", ""))
    command = importlib.import_module(f"topowise_scheduler.kubectl.{options.command}")
    run: Callable[[argparse.Namespace, console.Console], Answer] = command.run
    terminal = console.of_this_process()
    if getattr(options, "watch", False):
        from topowise_scheduler.kubectl import watching

        watching.watch(lambda: run(options, console.of_this_process()), options, terminal)
    return run(options, terminal)


def _encode(form: str) -> None:
    """What programs read is UTF-8 whatever the terminal's encoding is, and no name is worth a crash."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        if form in _DOCUMENTS:
            sys.stdout.reconfigure(encoding="utf-8")
        else:
            sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
