"""Tables of developer tools, in the form of those of kubectl topowise."""

from __future__ import annotations

from collections.abc import Sequence

from topowise.text import rendered
from topowise_scheduler.presentation.kubectl import table as lines


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """The table as text, without a line end at its end."""
    return rendered(lines.columns(header, rows, indent=indent))[:-1]
