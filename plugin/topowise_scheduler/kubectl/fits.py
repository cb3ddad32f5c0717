"""`kubectl topowise fits`: how many more pods like this one there is room for, node by node."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec

from topowise.errors import SourceError
from topowise_scheduler.kubectl import cluster
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl.columns import columns
from topowise_scheduler.kubectl.console import Answer, Console
from topowise_scheduler.kubectl.manifests import Wanted, not_looked_at
from topowise_scheduler.view.cluster_view import ClusterView
from topowise_scheduler.view.fits import Room
from topowise_scheduler.view.picture.words import counted


def run(options: argparse.Namespace, console: Console) -> Answer:
    """The command."""
    if bool(options.pod) == bool(options.file):
        raise SourceError("fits", "expected a pod, what makes pods, or -f FILE, and only one of them")
    known, wanted, notes = cluster.open_with_manifests(options)
    notes += not_looked_at(wanted)
    texts, documents, status = [], [], 0
    for one in wanted:
        rooms = sorted(_rooms(known.view, one), key=lambda room: (-room.count, room.node))
        total = sum(room.count for room in rooms)
        status = status if total else 1
        documents.append(_document(one, rooms, total))
        texts.append(_text(one, rooms, total, console))
    if options.output == "json":
        document: Any = documents[0] if len(documents) == 1 else documents
        return Answer(msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n", status, notes)
    return Answer("\n".join(texts), status, notes)


def _rooms(view: ClusterView, one: Wanted) -> Iterator[Room]:
    """What each node has room for; of those that have none, what `explain` says."""
    pod = one.numbered(0)
    rooms = []
    for filling in view.fillings(pod, view.names):
        while filling.add():
            pass
        rooms.append(filling.room())
    full = [room.node for room in rooms if not room.count]
    why = {one.node: one.text for one in view.explanations(pod, full)}
    return (msgspec.structs.replace(room, limit=why.get(room.node, room.limit)) for room in rooms)


def _document(one: Wanted, rooms: list[Room], total: int) -> dict[str, Any]:
    return {"pod": one.name, "from": one.origin, "fits": total, "nodes": rooms}


def _text(one: Wanted, rooms: list[Room], total: int, console: Console) -> str:
    title = f"{one.name}: {total} more {'fits' if total == 1 else 'fit'} on {counted(len(rooms), 'node')}"
    header = ["NODE", "FITS", "FIRST ON NUMA", "THEN"]
    rows = [[room.node, str(room.count), room.first, room.limit] for room in rooms]

    def paint(column: int, cell: str) -> str:
        return console.paint(cell, colours.BAD if cell == "0" else colours.GOOD) if column == 1 else cell

    return f"{console.paint(title, colours.BOLD)}\n\n{columns(header, rows, width=console.width, paint=paint)}\n"
