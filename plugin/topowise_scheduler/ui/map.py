"""The map of the page: the nodes with what each NUMA node has free, as rows of a table or, if there are many, as tiles.

They are drawn in slices, between which kube-scheduler is answered.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from topowise import quantity
from topowise_scheduler.ui.markup import BADGES, Query, badge, escaped, node_link, time_of
from topowise_scheduler.ui.state import Node, State, Zone, let_others_go_first
from topowise_scheduler.view.picture.words import counted

BINS: Final = ("none", "1–25 %", "26–50 %", "51–75 %", "over 75 %")
_BIN_CLASSES: Final = ("0", "1", "2", "3", "4", "x")
_MOST_ROWS: Final = 100
# With JavaScript more nodes than these are tiles, in blocks of which only those are sent that have changed.
_MOST_LIVE_ROWS: Final = 40
_DENSE: Final = 500
_BLOCK: Final = 100
_FEW: Final = 8


async def map_parts(state: State, query: Query) -> dict[str, str]:
    """The nodes as rows of a table, or as tiles in blocks; above them, of many, how they are distributed."""
    nodes = [node for node in state.nodes if _is_wanted(node, state, query)]
    if not nodes:
        words = "No node matches." if state.nodes else "No node has been reported yet."
        return {"map": f'<p class="note">{words}</p>'}
    as_tiles = query.is_live and len(nodes) > _MOST_LIVE_ROWS
    draw = _tile if as_tiles else _row
    most = len(nodes) if query.is_live else _MOST_ROWS
    counts: Counter[tuple[int, str]] = Counter()
    blocks = []
    begun = time.perf_counter()
    for start in range(0, len(nodes), _BLOCK):
        block = nodes[start : start + _BLOCK]
        counts.update((node.policy, bin_of(zone)) for node in block for zone in node.zones)
        if start < most:
            blocks.append("".join(draw(node, state, query) for node in block))
        begun = await let_others_go_first(begun)
    spread = _distribution(counts, state) if len(nodes) > _FEW else ""
    if not as_tiles:
        return {"map": f"{spread}{_table(state, ''.join(blocks))}" + _more(len(nodes) - most)}
    places = "".join(f'<div class="block" id="tiles-{number}"></div>' for number in range(len(blocks)))
    about = f"{len(nodes)} nodes; arrow keys go from one to the next, Enter shows it"
    tiles = f'<div class="{"tiles dense" if len(nodes) > _DENSE else "tiles"}" role="group" aria-label="{about}">'
    hint = "Each tile is a node, each bar a NUMA node, filled as far as it is free. Dashed: uncertain, or quarantine."
    return {
        "map": f'<div id="spread"></div>{tiles}{places}</div><p class="note">{hint}</p>',
        "spread": spread,
        **{f"tiles-{number}": block for number, block in enumerate(blocks)},
    }


def _table(state: State, rows: str) -> str:
    return (
        f'<table class="nodes"><thead><tr><th scope="col">Node</th><th scope="col">Policy</th>'
        f'<th scope="col">NUMA nodes: free/all {escaped(state.resource)}</th><th scope="col" class="number">Pods</th>'
        f'<th scope="col">State</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _more(count: int) -> str:
    return f'<p class="note">and {count} more: filter by name or policy.</p>' if count > 0 else ""


def _distribution(counts: Mapping[tuple[int, str], int], state: State) -> str:
    """How many NUMA nodes have how much free, by policy."""
    rows = [
        (policy, {number: counts[at, number] for number in _BIN_CLASSES})
        for at, policy in reversed(list(enumerate(state.policies)))
        if any(counts[at, number] for number in _BIN_CLASSES)
    ]
    if len(rows) > 1:
        rows.append(("all", {number: sum(mine[number] for _, mine in rows) for number in _BIN_CLASSES}))
    heads = "".join(f'<th scope="col" class="number">{words}</th>' for words in BINS)
    return (
        f'<table class="distribution"><caption>NUMA nodes by free share of {escaped(state.resource)}</caption>'
        f'<thead><tr><th scope="col">Policy</th>{heads}<th scope="col" class="number">not counted</th></tr></thead>'
        f"<tbody>{''.join(_distribution_row(policy, mine) for policy, mine in rows)}</tbody></table>"
    )


def _distribution_row(policy: str, counts: Mapping[str, int]) -> str:
    cells = "".join(
        f'<td class="number{f" b{number}" if count else ""}">{count or "·"}</td>' for number, count in counts.items()
    )
    return f'<tr><th scope="row">{escaped(policy)}</th>{cells}</tr>'


def _row(node: Node, state: State, query: Query) -> str:
    cells = "".join(_zone(zone, state.unit) for zone in node.zones) or '<span class="note">has none</span>'
    badges = "".join(badge(mark) for mark in node.marks)
    precision = "" if node.is_exact else '<span class="badge quiet">counts</span>'
    seen = f'<small class="ago">{time_of(datetime.fromtimestamp(node.seen, UTC))}</small>' if node.seen else ""
    unseen = "" if node.seen else ' title="no new report since the service started"'
    return (
        f'<tr{_chosen(node, query)}><th scope="row"{unseen}>{node_link(node.name, query)}</th>'
        f"<td>{escaped(state.policies[node.policy])}</td>"
        f'<td><div class="zones">{cells}</div></td><td class="number">{node.pods}</td>'
        f"<td>{precision}{badges}{seen}</td></tr>"
    )


def _tile(node: Node, state: State, query: Query) -> str:
    words = [node.name, state.policies[node.policy], *(_in_words(zone, state.unit) for zone in node.zones)]
    words += [
        counted(node.pods, "pod"),
        *([] if node.is_exact else ["counts"]),
        *(BADGES[mark] for mark in node.marks),
    ]
    bars = "".join(f'<span class="bar b{bin_of(zone)} h{tenths(zone)}"></span>' for zone in node.zones)
    classes = f"tile{' marked' if node.marks.strip('p') else ''}{' chosen' if node.name == query.node else ''}"
    name = escaped(node.name)
    return (
        f'<a class="{classes}" href="{escaped(query.link(node=node.name))}" data-node="{name}" tabindex="-1" '
        f'title="{escaped("; ".join(words))}">{bars}</a>'
    )


def _chosen(node: Node, query: Query) -> str:
    return ' class="chosen"' if node.name == query.node else ""


def _zone(zone: Zone, unit: str) -> str:
    amounts = "–"
    if zone.free is not None:
        amounts = f"{_amount(zone.free, unit)}<small>/{_amount(zone.total, unit)}</small>"
    return (
        f'<span class="zone b{bin_of(zone)} w{tenths(zone)}" title="{_in_words(zone, unit)}">'
        f'<i>{zone.id}</i><span class="hidden">:</span> {amounts}</span>'
    )


def _in_words(zone: Zone, unit: str) -> str:
    if zone.free is None:
        return f"NUMA node {zone.id}: {_amount(zone.total, unit)}, nobody counts"
    return f"NUMA node {zone.id}: {_amount(zone.free, unit)} of {_amount(zone.total, unit)} free"


def bin_of(zone: Zone) -> str:
    """The class of a share: a place in BINS, "x" where nobody counts."""
    if zone.free is None or not zone.total:
        return "x"
    return str(min(4, -(-4 * zone.free // zone.total)))


def tenths(zone: Zone) -> int:
    """The share in tenths; 0 for nothing alone."""
    return 0 if not zone.free or not zone.total else max(1, 10 * zone.free // zone.total)


def _amount(amount: int, unit: str) -> str:
    return quantity.human_bytes(amount << 20) if unit == "MiB" else str(amount)


def _is_wanted(node: Node, state: State, query: Query) -> bool:
    """Whether the filters let a node through."""
    return query.name.lower() in node.name.lower() and query.policy in ("", state.policies[node.policy])
