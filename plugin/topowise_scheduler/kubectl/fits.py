"""`kubectl topowise fits`: how many more pods like this one each node takes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from topowise.text import Line, Styled
from topowise_scheduler.explain.cluster_view import ClusterView, Room
from topowise_scheduler.explain.text import plural
from topowise_scheduler.explain.waiting import waiting_pod
from topowise_scheduler.explain.waiting_texts import next_step
from topowise_scheduler.kubectl import cluster, json_output, reasons, selection
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl.console import Console, Output, columns, paragraphs
from topowise_scheduler.kubectl.manifests import Workload, not_looked_at


def run(options: argparse.Namespace, console: Console) -> Output:
    """The command."""
    known, workloads, notes = cluster.open_with_manifests(options)
    notes += not_looked_at(workloads)
    nodes = selection.labelled(known.trial.names, options.selector, known.nodes)
    texts: list[list[Line]] = []
    documents: list[dict[str, Any]] = []
    status = 0
    for workload in workloads:
        rooms = sorted(_rooms(known.view, workload, nodes), key=lambda room: (-room.count, room.node))
        total = sum(room.count for room in rooms)
        status = status if total else 1
        documents.append(_document(workload, rooms, total))
        text = _text(workload, rooms, total, console, options)
        if not total:
            text += [
                "",
                f"Next step: {next_step(waiting_pod(known.view, known.trial.record(workload.numbered(0))).step)}",
            ]
        texts.append(text)
    body = json_output.printed(
        options.output,
        documents if len(documents) != 1 else documents[0],
        names=(room.node for document in documents for room in document["nodes"] if room.count),
    )
    return Output(paragraphs(texts) if body is None else body, status, notes)


def _rooms(view: ClusterView, workload: Workload, nodes: Sequence[str]) -> Iterator[Room]:
    """The number of copies on each node; a full node has the text of `explain`."""
    pod = workload.numbered(0)
    rooms = view.rooms(pod, nodes)
    full = [room.node for room in rooms if not room.count]
    why = {workload.node: workload.text for workload in view.explanations(pod, full)}
    return (msgspec.structs.replace(room, limit=why.get(room.node, room.limit)) for room in rooms)


def _document(workload: Workload, rooms: list[Room], total: int) -> dict[str, Any]:
    return {"pod": workload.name, "from": workload.origin, "fits": total, "nodes": rooms}


def _text(
    workload: Workload, rooms: list[Room], total: int, console: Console, options: argparse.Namespace
) -> list[Line]:
    title = f"{workload.name}: {total} more {'fits' if total == 1 else 'fit'} on {plural(len(rooms), 'node')}"
    header = ["NODE", "FITS", "FIRST ON NUMA", "THEN"]
    is_summed_up = len(rooms) > reasons.MOST_ROWS and not (options.all or options.output == "wide")
    if is_summed_up:
        rows = [*_most(rooms), *reasons.without_room(rooms)]
    else:
        rows = [_row(room, is_wide=options.output == "wide") for room in rooms]

    def paint(column: int, cell: str) -> str | Styled:
        return console.paint(cell, colours.BAD if cell == "0" else colours.GOOD) if column == 1 else cell

    table = columns(header, rows, width=console.width, paint=paint)
    more = ["", reasons.ALL] if is_summed_up else []
    return [[console.paint(title, colours.BOLD)], "", *table, *more]


def _row(room: Room, *, is_wide: bool = False) -> list[str]:
    first, limit = (reasons.cell(text, is_wide=is_wide) for text in (room.first, room.limit))
    return [room.node, str(room.count), first, limit]


def _most(rooms: Sequence[Room]) -> list[list[str]]:
    """The first nodes that take copies, and the sum of the remaining nodes."""
    roomy = [room for room in rooms if room.count]
    rows, more = [_row(room) for room in roomy[: reasons.MOST_ROWS]], roomy[reasons.MOST_ROWS :]
    return [*rows, [f"({len(more)} more)", str(sum(room.count for room in more)), "", ""]] if more else rows
