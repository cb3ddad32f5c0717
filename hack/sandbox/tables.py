"""Tables of the developer tools for a terminal, as kubectl topowise prints them."""

from __future__ import annotations

from collections.abc import Sequence

from topowise.text import rendered
from topowise_scheduler.kubectl import console


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Returns a table, without a line end at its end."""
    return rendered(console.columns(header, rows, indent=indent))[:-1]
