"""`--watch`: repeats a command until ^C.

A terminal is drawn again each time. A pipe gets an answer only if its `key` has changed: ages grow without any news.
After the first answer an error is printed and does not end the command, because it may pass.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Never

from topowise.errors import SourceError, TopowiseError
from topowise.runtime import output
from topowise_scheduler.presentation.kubectl.console import Answer, Console


def watch(
    ask: Callable[[], Answer],
    options: argparse.Namespace,
    console: Console,
    pause: Callable[[float], None] = time.sleep,
) -> Never:
    """Writes answers for ever. Raises the first error, and SourceError for a source that cannot be read twice."""
    if "-" in [*options.file, *getattr(options, "nodes_file", [])]:
        raise SourceError("--watch", "stdin can be read once, expected files or the cluster")
    last: str | None = None
    while True:
        try:
            answer = ask()
        except TopowiseError as exc:
            if last is None:
                raise
            answer = Answer("", notes=(f"error: {exc}; asked again in {options.interval:g} s",), key=str(exc))
        key = answer.key or answer.text + "\n".join(answer.notes)
        if console.width is not None or key != last:
            _write(answer, console, is_first=last is None)
        last = key
        pause(options.interval)


def _write(answer: Answer, console: Console, *, is_first: bool) -> None:
    if console.width is not None:
        output.clear_screen()
    elif not is_first and answer.body:
        output.write([""])
    output.write(answer.body)
    for note in answer.notes:
        output.note(note)
