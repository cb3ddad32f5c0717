"""Tables of the developer tools: for a terminal as kubectl topowise prints them, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from topowise.text import rendered
from topowise_scheduler.kubectl import table as lines


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Returns a table for a terminal, without a line end at its end."""
    return rendered(lines.columns(header, rows, indent=indent))[:-1]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table, without a line end at its end."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
