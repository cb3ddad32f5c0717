"""The CPUs of a zone: threads in cores, cores in rows, rows in caches where a zone has several."""

from __future__ import annotations

from topowise_scheduler.view.picture.flow import Flow
from topowise_scheduler.view.picture.marks import Place, centred, mark
from topowise_scheduler.view.picture.model import Cache, Core, Thread, Zone
from topowise_scheduler.view.picture.plan import Plan, balanced
from topowise_scheduler.view.picture.scene import Box, Text
from topowise_scheduler.view.picture.words import counted, cpus_caption, tag, thread_title


def place(flow: Flow, sheet: Plan, zone: Zone) -> None:
    """All CPUs of the zone, under a caption."""
    if not zone.threads:
        flow.line("caption", "no CPUs")
        return
    long, short, figure = cpus_caption(zone)
    flow.line("caption", long, figure, shorter=short)
    flow.skip(sheet.measures.after_caption)
    for number, socket in enumerate(zone.sockets):
        if len(zone.sockets) > 1:
            flow.skip(sheet.measures.after_caption if number else 0)
            flow.line("note", f"socket {socket.id}")
        _caches(flow, sheet, socket.caches)


def _caches(flow: Flow, sheet: Plan, caches: tuple[Cache, ...]) -> None:
    """Caches beside each other while they fit."""
    measures = sheet.measures
    left, end = flow.x + sheet.label_x, flow.x + flow.width
    x, y = left, flow.y
    for cache in caches:
        edges = 2 * _frame(sheet, cache)
        fit = max(1, (end - left - edges + measures.core_gap) // (sheet.core_x + measures.core_gap))
        columns = balanced(len(cache.cores), fit)
        if x > left and x + sheet.across(columns) + edges > end:
            x, y = left, flow.y + measures.cache_gap * bool(edges)
        if x == left:
            _row_labels(flow, sheet, cache, columns, y)
        box = _cache(sheet, cache, columns, x, y)
        flow.add(box)
        x = box.right + measures.cache_gap


def _cache(sheet: Plan, cache: Cache, columns: int, x: int, y: int) -> Box:
    """The cores in rows; a cache that has no id has no frame either."""
    pad = _frame(sheet, cache)
    cores = []
    top = y + pad
    for start in range(0, len(cache.cores), columns):
        row = cache.cores[start : start + columns]
        for column, core in enumerate(row):
            cores.append(_core(sheet, core, x + pad + column * (sheet.core_x + sheet.measures.core_gap), top))
        top += _row_y(sheet, row) + sheet.measures.core_gap
    bottom = top - sheet.measures.core_gap + pad
    title = "" if cache.id is None else f"L3 cache {cache.id}: {counted(len(cache.cores), 'core')}"
    width = sheet.across(columns) + 2 * pad
    return Box("cache", x, y, width, bottom - y, state="framed" if pad else "", title=title, boxes=tuple(cores))


def _frame(sheet: Plan, cache: Cache) -> int:
    return 0 if cache.id is None else sheet.measures.cache_pad


def _row_y(sheet: Plan, row: tuple[Core, ...]) -> int:
    return max(len(core.threads) for core in row) * sheet.measures.cell_y + 2 * sheet.measures.core_pad


def _row_labels(flow: Flow, sheet: Plan, cache: Cache, columns: int, y: int) -> None:
    """The id of the first CPU of each row of cells, where the cells have no room for ids."""
    if not sheet.label_x:
        return
    for start in range(0, len(cache.cores), columns):
        for number, thread in enumerate(cache.cores[start].threads):
            if thread.id is not None:
                top = y + number * sheet.measures.cell_y
                flow.texts.append(Text(flow.x + sheet.label_x - 1, top, str(thread.id), "id", "end"))
        y += _row_y(sheet, cache.cores[start : start + columns]) + sheet.measures.core_gap


def _core(sheet: Plan, core: Core, x: int, y: int) -> Box:
    measures = sheet.measures
    pad = measures.core_pad
    cells = [
        _cell(sheet, thread, Place(x + pad, y + pad + number * measures.cell_y, sheet.cell_x, measures.cell_y))
        for number, thread in enumerate(core.threads)
    ]
    return Box("core", x, y, sheet.core_x, len(cells) * measures.cell_y + 2 * pad, boxes=tuple(cells))


def _cell(sheet: Plan, thread: Thread, place: Place) -> Box:
    """The id, where there is room for it, and the tag of who has the CPU."""
    title = thread_title(sheet.picture, thread)
    if not sheet.measures.cell_ids or thread.id is None:
        return mark(sheet, "cpu", place, thread.state, thread.owner, title)
    pad = sheet.measures.cell_pad
    texts = [centred(sheet, place, str(thread.id), "id", place.x + pad + sheet.id_x, "end")]
    if thread.owner is not None:
        texts.append(centred(sheet, place, tag(thread.owner), "tag", place.x + place.width - pad - sheet.tag_x))
    return Box("cpu", *place, state=thread.state, owner=thread.owner, title=title, texts=tuple(texts))
