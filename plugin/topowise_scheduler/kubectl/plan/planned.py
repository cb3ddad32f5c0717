"""The results of today and of each change as rows, as text for a terminal, and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from topowise.text import Line, Styled
from topowise_scheduler.explain.refusal_texts import bare
from topowise_scheduler.explain.text import plural
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl.console import Console, columns, human
from topowise_scheduler.kubectl.zones import short
from topowise_scheduler.overlay.plan import NOT_MODELLED, Found, Result
from topowise_scheduler.report.restart_forecast import NodeRestart
from topowise_scheduler.verdicts.kube_scheduler import to_text

_MOST_LINES = 10


class Planned(NamedTuple):
    """Today's result first. `found` is the outcome of --smallest, None without it."""

    results: tuple[Result, ...]
    existing: str
    found: Found | None = None


class Row(NamedTuple):
    """A row of the comparison: a title, and a text for each result; `is_bad` marks results that are worse than 0."""

    title: str
    cells: Sequence[str]
    is_bad: Sequence[bool] = ()


def rows(planned: Planned) -> list[Row]:
    """Returns the comparison; rows that say nothing for any result are left out."""
    return [row for row in _rows(planned.results) if any(cell not in ("", "0") for cell in row.cells)]


def _rows(results: Sequence[Result]) -> Iterator[Row]:
    yield Row("", [""] * len(results))
    yield _counts("nodes", results, [result.nodes for result in results])
    yield _counts("pods placed", results, [result.placed for result in results])
    yield _counts("pods that fit nowhere", results, [result.refused for result in results], is_bad=True)
    yield _counts("pods on several NUMA nodes", results, [result.spread for result in results])
    yield _counts("running pods placed again", results, [result.replaced for result in results])
    yield _counts("running pods without a node", results, [len(result.displaced) for result in results], is_bad=True)
    yield _counts("refused by kubelets", results, [result.kubelet_refusals for result in results], is_bad=True)
    yield _counts("pods moved", results, [result.moves for result in results])
    for name in dict.fromkeys(entry.name for result in results for entry in result.workloads):
        yield Row(f"{name} placed", [_placed(result, name) for result in results])
    for name in dict.fromkeys(entry.name for result in results for entry in result.resources):
        yield from _resource(name, results)
    yield from _waits(results)
    yield from _restarts(results)


def _counts(title: str, results: Sequence[Result], numbers: Sequence[int], *, is_bad: bool = False) -> Row:
    cells = ["" if result.error else str(number) for result, number in zip(results, numbers, strict=True)]
    return Row(title, cells, [is_bad and number > 0 for number in numbers])


def _placed(result: Result, name: str) -> str:
    entry = next((entry for entry in result.workloads if entry.name == name), None)
    if entry is None:
        return ""
    return str(entry.placed) if entry.asked is None else f"{entry.placed} of {entry.asked}"


def _resource(name: str, results: Sequence[Result]) -> Iterator[Row]:
    used, stranded = [], []
    for result in results:
        entry = next((entry for entry in result.resources if entry.name == name), None)
        amount = 0 if entry is None else entry.used
        if result.waits is not None and name == "cpu":
            # A mean over time: tenths of a CPU say enough.
            amount = round(amount, -2)
        used.append("" if entry is None else f"{to_text(name, amount)} of {to_text(name, entry.allocatable)}")
        is_known = entry is not None and entry.stranded is not None
        stranded.append(to_text(name, entry.stranded or 0) if entry is not None and is_known else "")
    shown = short(name)
    yield Row(f"{shown} used{', on average' if any(result.waits for result in results) else ''}", used)
    yield Row(f"{shown} stranded", stranded, [cell not in ("", "0") for cell in stranded])


def _waits(results: Sequence[Result]) -> Iterator[Row]:
    waits = [result.waits for result in results]
    if not any(waits):
        return
    yield Row("wait, median", ["" if wait is None else human(round(wait.median)) for wait in waits])
    yield Row("wait, 95 %", ["" if wait is None else human(round(wait.p95)) for wait in waits])
    yield Row("wait, longest", ["" if wait is None else human(round(wait.longest)) for wait in waits])
    never = [0 if wait is None else wait.never for wait in waits]
    yield Row("never started", [str(number) for number in never], [number > 0 for number in never])


def _restarts(results: Sequence[Result]) -> Iterator[Row]:
    if not any(result.restarts or result.without_forecast for result in results):
        return
    outcomes = ("admits all pods", "refuses pods", "does not start")
    for outcome in outcomes:
        counts = [sum(restart.outcome == outcome for restart in result.restarts) for result in results]
        yield _counts(f"restart: kubelet {outcome}", results, counts, is_bad=outcome != outcomes[0])
    refused = [sum(len(restart.refused) for restart in result.restarts) for result in results]
    yield _counts("restart: pods refused", results, refused, is_bad=True)
    yield _counts("restart: no forecast", results, [result.without_forecast for result in results])


def title(result: Result) -> str:
    """Returns the name of a column."""
    return result.change.name or "change"


def refusals(result: Result) -> list[tuple[str, str]]:
    """Returns each workload that fits nowhere any more, with the reasons of the nodes."""
    return [
        (entry.name, "; ".join(f"{plural(count, 'node')}: {bare(reason)}" for reason, count in entry.why.items()))
        for entry in result.workloads
        if entry.why
    ]


def bad_restarts(result: Result) -> list[tuple[str, str]]:
    """Returns the nodes whose kubelet would not start or would refuse pods, with the details."""
    return [(restart.node, _why(restart)) for restart in result.restarts if restart.error or restart.refused]


def _why(restart: NodeRestart) -> str:
    if restart.error:
        why = f"does not start: {restart.error}"
    else:
        why = "refuses " + "; ".join(f"{pod.pod} ({pod.reason})" for pod in restart.refused)
    return f"{why}; {restart.remark}" if restart.remark else why


def verdict(planned: Planned) -> str:
    """Returns the answer as a sentence."""
    found = planned.found
    if found is not None:
        tries = plural(found.tries, "change") + " tried"
        if found.result is None:
            return f"No allowed change makes all pods fit ({tries}{'' if found.is_least else ', not all'})."
        if found.result is planned.results[0] or len(planned.results) == 1:
            return f"All pods fit without a change ({tries})."
        return f"The smallest change after which all pods fit: {title(found.result)} ({tries})."
    names = ["today", *[f"with {title(result)}" for result in planned.results[1:]]]
    last, when = planned.results[-1], names[-1]
    if last.error:
        return f"The change is not possible: {last.error}"
    if last.fits:
        fitting = [name for name, result in zip(names, planned.results, strict=True) if result.fits]
        return f"All pods fit {', and '.join(fitting)}."
    missing = last.refused + len(last.displaced) + (last.waits.never if last.waits and not last.refused else 0)
    return f"{plural(missing, 'pod')} would have no node {when}."


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


def document(planned: Planned) -> dict[str, Any]:
    """Returns the document. CPUs are in milli-CPUs, memory is in bytes, times are in seconds."""
    document: dict[str, Any] = {
        "verdict": verdict(planned),
        "existing": planned.existing,
        "complete": all(result.is_complete for result in planned.results),
        "scenarios": [_scenario(result) for result in planned.results],
        "notModelled": list(NOT_MODELLED),
    }
    found = planned.found
    if found is not None:
        change = None if found.result is None else title(found.result)
        document["smallest"] = {"change": change, "tries": found.tries, "least": found.is_least}
    return document


def _scenario(result: Result) -> dict[str, Any]:
    if result.error:
        return {"name": title(result), "error": result.error, "fits": False}
    return {
        "name": title(result),
        "fits": result.fits,
        "complete": result.is_complete,
        "nodes": result.nodes,
        "nodesUsed": result.nodes_used,
        "placed": result.placed,
        "spread": result.spread,
        "refused": result.refused,
        "replaced": result.replaced,
        "displaced": list(result.displaced),
        "kubeletRefusals": result.kubelet_refusals,
        "moves": result.moves,
        "workloads": [
            {
                "name": entry.name,
                "asked": entry.asked,
                "placed": entry.placed,
                "why": {bare(reason): count for reason, count in entry.why.items()},
            }
            for entry in result.workloads
        ],
        "resources": {
            entry.name: {
                "allocatable": entry.allocatable,
                "used": entry.used,
                "free": entry.free,
                "stranded": entry.stranded,
            }
            for entry in result.resources
        },
        "waits": None if result.waits is None else msgspec.to_builtins(result.waits),
        "restarts": [{**msgspec.to_builtins(restart), "outcome": restart.outcome} for restart in result.restarts],
        "restartsWithoutForecast": result.without_forecast,
        "notChecked": {name: list(terms) for name, terms in result.unexamined.items()},
    }
