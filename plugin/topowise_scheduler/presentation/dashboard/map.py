"""The map of the page: the nodes with what each NUMA node has free, as rows of a table or, if there are many, as tiles;
if there are very many, as groups of a hundred that open to tiles.

They are drawn in slices, between which kube-scheduler is answered.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from topowise_scheduler.presentation.dashboard.capacity import Fitting
from topowise_scheduler.presentation.dashboard.cluster_state import (
    FRAGMENTED,
    Node,
    State,
    Zone,
    amount,
    let_others_go_first,
)
from topowise_scheduler.presentation.dashboard.markup import BADGES, Query, badge, escaped, node_link, table, time_of
from topowise_scheduler.presentation.dashboard.spread import BINS, Spread, bin_of, spread_part, tenths
from topowise_scheduler.presentation.text import plural

_MOST_ROWS: Final = 40
# Tiles come in blocks of which only those are sent that have changed.
_MOST_TILES: Final = 500
_BLOCK: Final = 100
_FEW: Final = 8
_PLACE: Final = re.compile(r'<div class="block" id="(tiles-\d+)">')
STATES: Final = {
    "": "all",
    "marked": "not as usual",
    **BADGES,
    "f": f"fragmented by {FRAGMENTED} % or more",
}
"""What the nodes can be filtered by, with the words for it."""


async def map_parts(state: State, query: Query, fitting: Fitting | None) -> dict[str, str]:
    """The nodes as rows of a table, as tiles or as groups of them; above them, of many, how they are spread.

    Of tiles and groups the map has the places alone, each block is a part of its own.
    """
    nodes = [node for node in state.nodes if _is_wanted(node, state, query, fitting)]
    filtered = _filtered(query, fitting, len(nodes), len(state.nodes))
    if not nodes:
        words = "No node matches." if state.nodes else "No node has been reported yet."
        return {"filtered": filtered, "spread": "", "map": f'<p class="note">{words}</p>'}
    as_tiles, as_groups = len(nodes) > _MOST_ROWS, len(nodes) > _MOST_TILES
    draw = _tile if as_tiles else _row
    spread, blocks = Spread(), []
    begun = time.perf_counter()
    for number, start in enumerate(range(0, len(nodes), _BLOCK)):
        block = nodes[start : start + _BLOCK]
        for node in block:
            spread.add(node, aligns=state.policies[node.policy] != "none")
        blocks.append(
            _group(number, block, state, query) if as_groups else "".join(draw(node, state, query) for node in block)
        )
        begun = await let_others_go_first(begun)
    summary = spread_part(spread, state, query) if len(nodes) > _FEW else ""
    if not as_tiles:
        heads = ("Node", "Policy", f"NUMA nodes: free/all {escaped(state.resource)}", "#Fragmented", "#Pods", "State")
        return {"filtered": filtered, "spread": summary, "map": table("nodes", heads, "".join(blocks))}
    return {
        "filtered": filtered,
        "spread": summary,
        "map": _frame(len(nodes), len(blocks), is_grouped=as_groups),
        **{f"tiles-{number}": block for number, block in enumerate(blocks)},
    }


def with_blocks(parts: dict[str, str]) -> str:
    """The map with all its blocks in their places."""
    return _PLACE.sub(lambda place: f"{place[0]}{parts[place[1]]}", parts["map"])


def _frame(nodes: int, blocks: int, *, is_grouped: bool) -> str:
    """The places of the blocks, and what they mean."""
    hint = "Each tile is a node, each bar a NUMA node, filled as far as it is free. Dashed: uncertain, or quarantine."
    if is_grouped:
        hint = f"Each line is {_BLOCK} nodes in the order of their names; it opens to a tile for each node."
    places = "".join(f'<div class="block" id="tiles-{number}"></div>' for number in range(blocks))
    about = f"{nodes} nodes; arrow keys go from one tile to the next, Enter opens it"
    kind = "groups" if is_grouped else "tiles"
    return f'<div class="{kind}" role="group" aria-label="{about}">{places}</div><p class="note">{hint}</p>'


def _filtered(query: Query, fitting: Fitting | None, shown: int, of: int) -> str:
    """What the nodes are filtered by beyond what the form says."""
    if not query.fits:
        return ""
    clear = f'<a href="{escaped(query.link(fits=""))}" data-fits="">Show all nodes</a>'
    if fitting is None:
        return f'<p class="note">The pod to filter by is not kept any more: count it again. {clear}</p>'
    words = f"{shown} of {plural(of, 'node')} match, those on which {escaped(fitting.pod)} fits now."
    return f'<p class="filtered">{words} {clear}</p>'


def _group(number: int, nodes: Sequence[Node], state: State, query: Query) -> str:
    """A hundred nodes in a line, and below it their tiles if it is open."""
    is_open = str(number) in query.opened
    opened = query.opened ^ {str(number)}
    first, last = escaped(nodes[0].name), escaped(nodes[-1].name)
    name = f"<bdi>{first}</bdi>" + (f" – <bdi>{last}</bdi>" if len(nodes) > 1 else "")
    lost = [node.lost for node in nodes if node.lost is not None]
    facts = [
        f"largest free {amount(max(node.most for node in nodes), state.unit)}",
        f"{round(sum(lost) / len(lost))} % fragmented" if lost else "",
        *(f"{count} {BADGES[mark]}" for mark, count in Counter("".join(node.marks for node in nodes)).items()),
    ]
    tiles = "".join(_tile(node, state, query) for node in nodes) if is_open else ""
    return (
        f'<a class="group" href="{escaped(query.link(open=".".join(sorted(opened))))}" data-open="{number}" '
        f'aria-expanded="{str(is_open).lower()}"><span class="names">{name}</span>{_stack(nodes)}'
        f'<span class="facts">{", ".join(fact for fact in facts if fact)}</span></a>'
        + (f'<div class="tiles">{tiles}</div>' if tiles else "")
    )


def _stack(nodes: Sequence[Node]) -> str:
    """How many of their NUMA nodes have how much free, as parts of a bar."""
    counts = Counter(bin_of(zone) for node in nodes for zone in node.zones)
    # The most free first, so that a long light end means a full group.
    order = [kind for kind in ("4", "3", "2", "1", "0", "x") if counts[kind]]
    starts = accumulate((counts[kind] for kind in order), initial=0)
    parts = "".join(
        f'<rect class="b{kind}" x="{x}" width="{counts[kind]}" height="1"><title>{counts[kind]} NUMA nodes: '
        f"{BINS[int(kind)] if kind != 'x' else 'not counted'} free</title></rect>"
        for kind, x in zip(order, starts, strict=False)
    )
    size = f'viewBox="0 0 {max(1, counts.total())} 1" preserveAspectRatio="none"'
    return f'<svg class="stack" {size} role="img" aria-label="free shares">{parts}</svg>'


def _row(node: Node, state: State, query: Query) -> str:
    cells = "".join(_zone(zone, state.unit) for zone in node.zones) or '<span class="note">has none</span>'
    badges = "".join(badge(mark) for mark in node.marks)
    precision = "" if node.is_exact else '<span class="badge quiet">counts</span>'
    seen = f'<small class="ago">{time_of(node.seen)}</small>' if node.seen else ""
    unseen = "" if node.seen else ' title="no new report since the service started"'
    return (
        f'<tr{_chosen(node, query)}><th scope="row"{unseen}>{node_link(node.name, query)}</th>'
        f"<td>{escaped(state.policies[node.policy])}</td>"
        f'<td><div class="zones">{cells}</div></td><td class="number">{_lost(node)}</td>'
        f'<td class="number">{node.pods}</td><td>{precision}{badges}{seen}</td></tr>'
    )


def _lost(node: Node) -> str:
    return "–" if node.lost is None else f"{node.lost} %"


def _tile(node: Node, state: State, query: Query) -> str:
    words = [node.name, state.policies[node.policy], *(_in_words(zone, state.unit) for zone in node.zones)]
    words += [
        *([f"{node.lost} % fragmented"] if node.lost else []),
        plural(node.pods, "pod"),
        *([] if node.is_exact else ["counts"]),
        *(BADGES[mark] for mark in node.marks),
    ]
    bars = "".join(f'<span class="bar b{bin_of(zone)} h{tenths(zone)}"></span>' for zone in node.zones)
    classes = f"tile{' marked' if node.marks.strip('p') else ''}{' chosen' if node.name == query.node else ''}"
    name = escaped(node.name)
    return (
        f'<a class="{classes}" href="{escaped(query.link(node=node.name, pod=""))}" data-node="{name}" '
        f'title="{escaped("; ".join(words))}">{bars}</a>'
    )


def _chosen(node: Node, query: Query) -> str:
    return ' class="chosen"' if node.name == query.node else ""


def _zone(zone: Zone, unit: str) -> str:
    amounts = "–"
    if zone.free is not None:
        amounts = f"{amount(zone.free, unit)}<small>/{amount(zone.total, unit)}</small>"
    return (
        f'<span class="zone b{bin_of(zone)} w{tenths(zone)}" title="{_in_words(zone, unit)}">'
        f'<i>{zone.id}</i><span class="hidden">:</span> {amounts}</span>'
    )


def _in_words(zone: Zone, unit: str) -> str:
    if zone.free is None:
        return f"NUMA node {zone.id}: {amount(zone.total, unit)}, nobody counts"
    return f"NUMA node {zone.id}: {amount(zone.free, unit)} of {amount(zone.total, unit)} free"


def _is_wanted(node: Node, state: State, query: Query, fitting: Fitting | None) -> bool:
    """Whether the filters let a node through."""
    return (
        query.name.lower() in node.name.lower()
        and query.policy in ("", state.policies[node.policy])
        and _is_in(node, query.state)
        and (not query.least or node.most >= query.least)
        and (fitting is None or node.name in fitting.nodes)
    )


def _is_in(node: Node, wanted: str) -> bool:
    if wanted == "f":
        return (node.lost or 0) >= FRAGMENTED
    if wanted == "marked":
        return bool(node.marks)
    # What is no state filters nothing.
    return wanted not in BADGES or wanted in node.marks
