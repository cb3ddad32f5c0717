"""Memory as bars: each type has one scale over all zones, and each share is a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topowise_scheduler.explain.picture.captions import memory_figure, share_title, shares, tags
from topowise_scheduler.explain.picture.contents import Memory, Share, Zone
from topowise_scheduler.explain.picture.flow import Flow
from topowise_scheduler.explain.picture.marks import Place, centred
from topowise_scheduler.explain.picture.plan import Plan
from topowise_scheduler.explain.picture.scene import Box, Text

_MOST_LINES: Final = 3


def place(flow: Flow, plan: Plan, zone: Zone, memory: Memory) -> None:
    """Places a memory type of the zone: caption, bar, and the shares in numbers."""
    measures = plan.measures
    flow.line("caption", memory.type, memory_figure(memory))
    if not memory.total:
        return
    flow.skip(measures.after_caption)
    to_scale = flow.width * memory.total // plan.largest[memory.type]
    drawn = _drawable(memory.shares, flow.width)
    width = max(len(drawn), to_scale)
    parts = []
    x = flow.x
    for share, share_x in zip(drawn, apportioned(width, [part.size for part in drawn]), strict=True):
        parts.append(_part(plan, zone, memory, share, Place(x, flow.y, share_x, measures.bar_y)))
        x += share_x
    state = "joined" if zone.group else ""
    flow.add(Box("bar", flow.x, flow.y, width, measures.bar_y, state=state, boxes=tuple(parts)))
    flow.skip(measures.after_caption)
    flow.few_lines("note", shares(memory), _MOST_LINES)


def apportioned(width: int, sizes: Sequence[int]) -> list[int]:
    """Divides `width` into whole parts to scale, each at least 1; the largest remainders get the rest."""
    total = sum(sizes)
    exact = [size * (width - len(sizes)) for size in sizes]
    parts = [1 + size // total for size in exact]
    order = sorted(range(len(sizes)), key=lambda at: (-(exact[at] % total), at))
    for at in order[: width - sum(parts)]:
        parts[at] += 1
    return parts


def _drawable(shares: Sequence[Share], room: int) -> list[Share]:
    """The shares; allocations are joined to a single part if there are more shares than columns."""
    if len(shares) <= room:
        return list(shares)
    allocated = [share for share in shares if share.kind == "held"]
    owners = tuple(dict.fromkeys(owner for share in allocated for owner in share.owners))
    joint = Share("held", sum(share.size for share in allocated), owners)
    before = shares.index(allocated[0])
    return [*shares[:before], joint, *(share for share in shares[before:] if share.kind != "held")]


def _part(plan: Plan, zone: Zone, memory: Memory, share: Share, place: Place) -> Box:
    measures = plan.measures
    texts: tuple[Text, ...] = ()
    label = tags(share.owners)
    if label and measures.faces["tag"].width(label) + 2 * measures.cell_pad <= place.width:
        texts = (centred(plan, place, label, "tag", place.x + measures.cell_pad),)
    return Box(
        "share",
        *place,
        state="joint" if len(share.owners) > 1 else "exclusive" if share.kind == "held" else share.kind,
        owner=share.owners[0] if len(share.owners) == 1 else None,
        title=share_title(plan.picture, zone, memory, share),
        texts=texts,
    )
