"""How what is free is spread over many nodes, at a glance: by its share, and by how large an aligned pod may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from topowise_scheduler.presentation.dashboard.cluster_state import Node, State, Zone, amount
from topowise_scheduler.presentation.dashboard.markup import Query, escaped, node_link

BINS: Final = ("none", "1–25 %", "26–50 %", "51–75 %", "over 75 %")
_BIN_CLASSES: Final = ("0", "1", "2", "3", "4", "x")
_MOST_SIZES: Final = 8


class Spread:
    """Takes in one node after the other."""

    def __init__(self) -> None:
        self.bins: Counter[tuple[int, str]] = Counter()
        """NUMA nodes by policy, and by how much of them is free."""
        self.most: Counter[int] = Counter()
        """Nodes that align by what their roomiest NUMA node has free."""
        self.largest = 0
        self.lost: list[int] = []
        self.worst: tuple[int, str] = (0, "")

    def add(self, node: Node, *, aligns: bool) -> None:
        """One more."""
        self.bins.update((node.policy, bin_of(zone)) for zone in node.zones)
        if aligns and any(zone.free is not None for zone in node.zones):
            self.most[node.most] += 1
            self.largest = max([self.largest, *(zone.total for zone in node.zones)])
        if node.lost is not None:
            self.lost.append(node.lost)
            if node.lost > self.worst[0]:
                self.worst = node.lost, node.name


def spread_part(spread: Spread, state: State, query: Query) -> str:
    """Two tables, and a line about fragmentation."""
    return (
        f'<div class="spread">{_distribution(spread.bins, state)}{_sizes(spread, state, query)}</div>'
        f"{_fragmentation(spread, query)}"
    )


def _fragmentation(spread: Spread, query: Query) -> str:
    if not spread.lost:
        return ""
    mean = round(sum(spread.lost) / len(spread.lost))
    worst = f", most on {node_link(spread.worst[1], query)}: {spread.worst[0]} %" if spread.worst[1] else ""
    title = "of the largest aligned pod that a node could have room for if what is free lay together; mean of the nodes"
    return f'<p class="note" title="{title}">Lost to fragmentation: <strong>{mean} %</strong>{worst}.</p>'


def _sizes(spread: Spread, state: State, query: Query) -> str:
    """On how many nodes an aligned pod of each size would find room: powers of two, up to the largest NUMA node."""
    top = spread.largest.bit_length() - 1
    sizes = [1 << power for power in range(max(0, top - _MOST_SIZES + 1), top + 1)] if spread.largest else []
    if not sizes:
        return ""
    nodes = spread.most.total()
    counts = {size: sum(count for most, count in spread.most.items() if most >= size) for size in sizes}
    heads = "".join(f'<th scope="col" class="number">{amount(size, state.unit)}</th>' for size in sizes)
    cells = "".join(
        f'<td class="number w{0 if not count else max(1, 10 * count // nodes)}">'
        f'<a href="{escaped(query.link(room=str(size)))}" data-room="{size}">{count}</a></td>'
        for size, count in counts.items()
    )
    caption = f"Nodes with room for an aligned pod of so many {escaped(_named(state))}"
    return (
        f'<table class="sizes"><caption>{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody><tr>{cells}</tr></tbody></table>"
    )


def _named(state: State) -> str:
    return "CPUs" if state.unit == "CPUs" else state.resource


def _distribution(counts: Mapping[tuple[int, str], int], state: State) -> str:
    """How many NUMA nodes have how much free, by policy."""
    rows = [
        (policy, {number: counts[at, number] for number in _BIN_CLASSES})
        for at, policy in reversed(list(enumerate(state.policies)))
        if any(counts[at, number] for number in _BIN_CLASSES)
    ]
    if len(rows) > 1:
        rows.append(("all", {number: sum(mine[number] for _, mine in rows) for number in _BIN_CLASSES}))
    shown = [*BINS, *(["not counted"] if any(mine["x"] for _, mine in rows) else [])]
    heads = "".join(f'<th scope="col" class="number">{words}</th>' for words in shown)
    return (
        f'<table class="distribution"><caption>NUMA nodes by free share of {escaped(state.resource)}</caption>'
        f'<thead><tr><th scope="col">Policy</th>{heads}</tr></thead>'
        f"<tbody>{''.join(_distribution_row(policy, mine, len(shown)) for policy, mine in rows)}</tbody></table>"
    )


def _distribution_row(policy: str, counts: Mapping[str, int], columns: int) -> str:
    cells = "".join(
        f'<td class="number{f" b{number}" if count else ""}">{count or "·"}</td>'
        for number, count in list(counts.items())[:columns]
    )
    return f'<tr><th scope="row">{escaped(policy)}</th>{cells}</tr>'


def bin_of(zone: Zone) -> str:
    """The class of a share: a place in BINS, "x" where nobody counts."""
    if zone.free is None or not zone.total:
        return "x"
    return str(min(4, -(-4 * zone.free // zone.total)))


def tenths(zone: Zone) -> int:
    """The share in tenths; 0 for nothing alone."""
    return 0 if not zone.free or not zone.total else max(1, 10 * zone.free // zone.total)
