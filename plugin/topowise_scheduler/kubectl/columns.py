"""Columns as kubectl prints them."""

from __future__ import annotations

from collections.abc import Sequence


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Left-aligned columns three spaces apart; the last is as long as it is."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    return "\n".join(
        indent + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )
