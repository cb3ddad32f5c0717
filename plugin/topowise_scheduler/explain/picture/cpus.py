"""The CPUs of a zone: threads in cores, cores in rows, rows in caches where a zone has several."""

from __future__ import annotations

from topowise_scheduler.explain.picture.captions import cpus_caption, tag, thread_title
from topowise_scheduler.explain.picture.contents import Cache, Core, Thread, Zone
from topowise_scheduler.explain.picture.flow import Flow
from topowise_scheduler.explain.picture.marks import Place, centred, mark
from topowise_scheduler.explain.picture.plan import Plan, balanced
from topowise_scheduler.explain.picture.scene import Box, Text
from topowise_scheduler.explain.text import plural


def place(flow: Flow, plan: Plan, zone: Zone) -> None:
    """All CPUs of the zone, under a caption."""
    if not zone.threads:
        flow.line("caption", "no CPUs")
        return
    long, short, figure = cpus_caption(zone)
    flow.line("caption", long, figure, shorter=short)
    flow.skip(plan.measures.after_caption)
    for number, socket in enumerate(zone.sockets):
        if len(zone.sockets) > 1:
            flow.skip(plan.measures.after_caption if number else 0)
            flow.line("note", f"socket {socket.id}")
        _caches(flow, plan, socket.caches)


def _caches(flow: Flow, plan: Plan, caches: tuple[Cache, ...]) -> None:
    """Caches beside each other while they fit."""
    measures = plan.measures
    left, end = flow.x + plan.label_x, flow.x + flow.width
    x, y = left, flow.y
    for cache in caches:
        edges = 2 * _frame(plan, cache)
        fit = max(1, (end - left - edges + measures.core_gap) // (plan.core_x + measures.core_gap))
        columns = balanced(len(cache.cores), fit)
        if x > left and x + plan.across(columns) + edges > end:
            x, y = left, flow.y + measures.cache_gap * bool(edges)
        if x == left:
            _row_labels(flow, plan, cache, columns, y)
        box = _cache(plan, cache, columns, x, y)
        flow.add(box)
        x = box.right + measures.cache_gap


def _cache(plan: Plan, cache: Cache, columns: int, x: int, y: int) -> Box:
    """The cores in rows; a cache that has no id has no frame either."""
    pad = _frame(plan, cache)
    cores = []
    top = y + pad
    for start in range(0, len(cache.cores), columns):
        row = cache.cores[start : start + columns]
        for column, core in enumerate(row):
            cores.append(_core(plan, core, x + pad + column * (plan.core_x + plan.measures.core_gap), top))
        top += _row_y(plan, row) + plan.measures.core_gap
    bottom = top - plan.measures.core_gap + pad
    title = "" if cache.id is None else f"L3 cache {cache.id}: {plural(len(cache.cores), 'core')}"
    width = plan.across(columns) + 2 * pad
    return Box("cache", x, y, width, bottom - y, state="framed" if pad else "", title=title, boxes=tuple(cores))


def _frame(plan: Plan, cache: Cache) -> int:
    return 0 if cache.id is None else plan.measures.cache_pad


def _row_y(plan: Plan, row: tuple[Core, ...]) -> int:
    return max(len(core.threads) for core in row) * plan.measures.cell_y + 2 * plan.measures.core_pad


def _row_labels(flow: Flow, plan: Plan, cache: Cache, columns: int, y: int) -> None:
    """The id of the first CPU of each row of cells, where the cells have no room for ids."""
    if not plan.label_x:
        return
    for start in range(0, len(cache.cores), columns):
        for number, thread in enumerate(cache.cores[start].threads):
            if thread.id is not None:
                top = y + number * plan.measures.cell_y
                flow.texts.append(Text(flow.x + plan.label_x - 1, top, str(thread.id), "id", "end"))
        y += _row_y(plan, cache.cores[start : start + columns]) + plan.measures.core_gap


def _core(plan: Plan, core: Core, x: int, y: int) -> Box:
    measures = plan.measures
    pad = measures.core_pad
    cells = [
        _cell(plan, thread, Place(x + pad, y + pad + number * measures.cell_y, plan.cell_x, measures.cell_y))
        for number, thread in enumerate(core.threads)
    ]
    return Box("core", x, y, plan.core_x, len(cells) * measures.cell_y + 2 * pad, boxes=tuple(cells))


def _cell(plan: Plan, thread: Thread, place: Place) -> Box:
    """The id, if there is space for it, and the tag of the pod that has the CPU."""
    title = thread_title(plan.picture, thread)
    if not plan.measures.cell_ids or thread.id is None:
        return mark(plan, "cpu", place, thread.state, thread.owner, title)
    pad = plan.measures.cell_pad
    texts = [centred(plan, place, str(thread.id), "id", place.x + pad + plan.id_x, "end")]
    if thread.owner is not None:
        texts.append(centred(plan, place, tag(thread.owner), "tag", place.x + place.width - pad - plan.tag_x))
    return Box("cpu", *place, state=thread.state, owner=thread.owner, title=title, texts=tuple(texts))
