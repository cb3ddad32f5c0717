"""The plan as Markdown, for a ticket or a pull request."""

from __future__ import annotations

from topowise.text import escaped
from topowise_scheduler.plan import NOT_MODELLED
from topowise_scheduler.presentation.kubectl.plan.planned import (
    Planned,
    bad_restarts,
    refusals,
    rows,
    title,
    verdict,
)

_MARKUP = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>#|~"})


def text(planned: Planned) -> str:
    """Returns the document."""
    heads = ["", *(_cell(title(result)) for result in planned.results)]
    lines = [_cell(verdict(planned)), "", _row(heads), _row(["---"] * len(heads))]
    lines += [_row([_cell(row.title), *(_cell(cell or "-") for cell in row.cells)]) for row in rows(planned)]
    for result in planned.results:
        details = [*refusals(result), *bad_restarts(result)]
        if result.error:
            details = [("not possible", result.error)]
        if details:
            lines += ["", f"**{_cell(title(result))}**", ""]
            lines += [f"- {_cell(name)}: {_cell(why)}" for name, why in details]
    lines += ["", f"Not modelled: {'; '.join(NOT_MODELLED)}."]
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(content: str) -> str:
    return escaped(content).translate(_MARKUP)
