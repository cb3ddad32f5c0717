"""`kubectl topowise fits`: how many more pods like this one there is room for, node by node.

Copies of the pod are put on a fork of each node until its kubelet, or node allocatable, takes no more. Nodes do not
depend on each other, so the sum is what the cluster has room for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from topowise_scheduler import explain
from topowise_scheduler.kubectl import console as colours
from topowise_scheduler.kubectl import whereabouts
from topowise_scheduler.kubectl.columns import columns
from topowise_scheduler.kubectl.console import Answer, Console
from topowise_scheduler.kubectl.manifests import Wanted
from topowise_scheduler.kubectl.picture.words import counted
from topowise_scheduler.kubectl.yard import Yard, open_yard
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.refusals import PREFIX
from topowise_scheduler.shape import PodRequests

MOST: Final = 1000
"""So many are tried on a node: more than any kubelet takes (maxPods), unless nobody tells how many that is."""


class Room(msgspec.Struct, frozen=True):
    """One node: how many fit, where the first would go, and why there are no more."""

    node: str
    count: int
    first: str
    limit: str


def run(options: argparse.Namespace, console: Console) -> Answer:
    """The command."""
    yard, notes = open_yard(options)
    texts, documents, status = [], [], 0
    for one in yard.wanted:
        rooms = sorted(rooms_for(yard, one), key=lambda room: (-room.count, room.node))
        total = sum(room.count for room in rooms)
        status = status if total else 1
        documents.append(_document(one, rooms, total))
        texts.append(_text(one, rooms, total, console))
    if options.output == "json":
        told: Any = documents[0] if len(documents) == 1 else documents
        return Answer(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n", status, notes)
    return Answer("\n".join(texts), status, notes)


def rooms_for(yard: Yard, one: Wanted) -> Iterator[Room]:
    """What each node has room for."""
    requests, _ = yard.estate.records.requests(one.pod)
    pod = one.numbered(0)
    refusals = yard.refusals(one, pod)
    for name in yard.names:
        refusal = refusals[name]
        by_sums = yard.filters.room(name, requests.needs)
        states = yard.estate.states(pod, name)
        if refusal:
            told = {why.node: why.text for why in yard.estate.explain(pod, [name])} if states else {}
            yield Room(name, 0, "-", told[name] if refusal.startswith(PREFIX) and name in told else refusal)
        elif not states:
            yield Room(name, by_sums[0] if by_sums else 0, "-", "not reported: node allocatable alone is looked at")
        else:
            yield _fill(name, states, yard.estate.precision(name), requests, by_sums)


def _fill(
    name: str, states: list[Kubelet], precision: str, requests: PodRequests, by_sums: tuple[int, str] | None
) -> Room:
    """Until one of the states that the node may be in has no room for one more."""
    most = MOST if by_sums is None else min(by_sums[0], MOST)
    first = "-"
    for number in range(most):
        uid = f"wanted/{number}"
        for state in states:
            before = state.fork()
            view = requests.view(uid, state.settings)
            if not state.admit_view(view).admitted:
                why = explain.explain(name, before, view, precision=precision)
                return Room(name, number, first, why.text)
        if not number:
            first = whereabouts.told(whereabouts.of(states[0], uid, is_exact=precision == "exact"))
    limit = f"Insufficient {by_sums[1]}" if by_sums is not None and by_sums[0] <= MOST else f"not tried beyond {MOST}"
    return Room(name, most, first, limit)


def _document(one: Wanted, rooms: list[Room], total: int) -> dict[str, Any]:
    return {"pod": one.name, "from": one.origin, "fits": total, "nodes": rooms}


def _text(one: Wanted, rooms: list[Room], total: int, console: Console) -> str:
    title = f"{one.name}: {total} more {'fits' if total == 1 else 'fit'} on {counted(len(rooms), 'node')}"
    header = ["NODE", "FITS", "FIRST ON NUMA", "THEN"]
    rows = [[room.node, str(room.count), room.first, room.limit] for room in rooms]

    def paint(column: int, cell: str) -> str:
        return console.paint(cell, colours.BAD if cell == "0" else colours.GOOD) if column == 1 else cell

    return f"{console.paint(title, colours.BOLD)}\n\n{columns(header, rows, width=console.width, paint=paint)}\n"
