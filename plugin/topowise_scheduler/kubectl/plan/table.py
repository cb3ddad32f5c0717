"""The plan as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from topowise.text import Line, Styled
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl.console import Console
from topowise_scheduler.kubectl.plan.planned import Planned, bad_restarts, refusals, rows, title, verdict
from topowise_scheduler.kubectl.table import columns
from topowise_scheduler.overlay.plan import NOT_MODELLED

_MOST_LINES = 10


def lines(planned: Planned, console: Console) -> list[Line]:
    """Returns the verdict, the comparison, the reasons, and what is not modelled."""
    is_good = planned.results[-1].fits if planned.found is None else planned.found.result is not None
    text: list[Line] = [[console.paint(verdict(planned), colours.GOOD if is_good else colours.BAD)], ""]
    compared = rows(planned)
    bad = {(row.title, column) for row in compared for column, is_bad in enumerate(row.is_bad) if is_bad}
    cells = [[row.title, *(cell or "-" for cell in row.cells)] for row in compared]
    painted = iter([row.title for row in compared for _ in range(len(planned.results) + 1)])

    def paint(column: int, cell: str) -> str | Styled:
        row = next(painted, "")
        return console.paint(cell, colours.BAD) if (row, column - 1) in bad else cell

    text += columns(["", *(title(result) for result in planned.results)], cells, paint=paint)
    text += list(_details(planned, console))
    text += ["", f"Not modelled: {'; '.join(NOT_MODELLED)}."]
    return text


def _details(planned: Planned, console: Console) -> Iterator[Line]:
    for result in planned.results:
        if result.error:
            yield ""
            yield f"{title(result)} is not possible: {result.error}"
        reasons = refusals(result)
        if reasons:
            yield ""
            yield f"Why not, {title(result)}:"
            yield from columns(
                ["POD", "NODES"], [list(reason) for reason in reasons[:_MOST_LINES]], indent="  ", width=console.width
            )
        restarts = bad_restarts(result)
        if restarts:
            yield ""
            yield f"Kubelets that restart, {title(result)}:"
            yield from columns(
                ["NODE", "OUTCOME"], [list(row) for row in restarts[:_MOST_LINES]], indent="  ", width=console.width
            )
            mends = dict.fromkeys(restart.mend for restart in result.restarts if restart.mend)
            yield from (f"  {mend}" for mend in mends)
        more = max(len(reasons), len(restarts)) - _MOST_LINES
        if more > 0:
            yield f"  and {more} more (-o json has all)"
