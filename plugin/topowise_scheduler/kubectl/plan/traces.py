"""Traces of pods: CSV with a header. `time` and `duration` are seconds, RFC 3339 and Go's durations also count.

`shape` is the name of a workload of -f, or amounts: `cpu=8 memory=32Gi nvidia.com/gpu=1`. `count` is optional.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from datetime import datetime
from math import inf, isfinite
from typing import Final

import msgspec

from topowise.errors import ParseError, SourceError
from topowise.pods import amount_of
from topowise_scheduler.kubectl.durations import of_go
from topowise_scheduler.overlay.plan import Arrival, Workload, pod_of

MOST_ROWS: Final = 200_000
_MOST_COUNT: Final = 10_000
_COLUMNS: Final = ("time", "shape", "duration")


def read(text: bytes, origin: str, workloads: Sequence[Workload]) -> tuple[Arrival, ...]:
    """Returns the pods of a trace, the first at second 0. Raises SourceError for the first row that cannot be read."""
    by_name = {workload.pod.metadata.name: workload for workload in workloads}
    try:
        rows = csv.DictReader(io.StringIO(text.decode("utf-8-sig")), strict=True)
        arrivals = list(_arrivals(rows, origin, by_name))
    except (UnicodeDecodeError, csv.Error) as exc:
        raise SourceError(origin, f"is no CSV in UTF-8: {exc}") from exc
    if not arrivals:
        raise SourceError(origin, "has no row, expected a row for each pod")
    first = min(arrival.at for arrival in arrivals)
    return tuple(msgspec.structs.replace(arrival, at=arrival.at - first) for arrival in arrivals)


def _arrivals(rows: csv.DictReader[str], origin: str, by_name: dict[str, Workload]) -> Iterator[Arrival]:
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise SourceError(
            origin, f"lacks the columns {', '.join(missing)}, expected a header with {', '.join(_COLUMNS)}"
        )
    for number, row in enumerate(rows, start=2):
        if number > MOST_ROWS:
            raise SourceError(origin, f"has more than {MOST_ROWS} rows, expected at most so many")
        where = f"{origin}, line {number}"
        at, duration = _seconds(row["time"], where, "time"), _duration(row["duration"], where)
        shape = (row["shape"] or "").strip()
        workload = by_name.get(shape) or by_name.setdefault(shape, _of_amounts(shape, where))
        for _ in range(_count(row.get("count") or "1", where)):
            yield Arrival(at, workload, duration)


def _of_amounts(shape: str, where: str) -> Workload:
    amounts = dict(part.partition("=")[::2] for part in shape.split())
    if not amounts or not all(amounts.values()):
        raise SourceError(where, f"shape {shape!r:.80}, expected the name of a workload of -f, or RESOURCE=QUANTITY")
    try:
        for name, text in amounts.items():
            if amount_of(name, text) < 0:
                raise ParseError(name, text, "a quantity of at least 0")
    except ParseError as exc:
        raise SourceError(where, f"shape {shape!r:.80}: {exc}") from exc
    return Workload(shape, pod_of("trace", amounts))


def _count(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_MOST_COUNT)) or int(text) > _MOST_COUNT:
        raise SourceError(where, f"count {text!r:.40}, expected a number up to {_MOST_COUNT}")
    return int(text)


def _duration(text: str | None, where: str) -> float | None:
    """Returns seconds, None for a pod that does not end."""
    if not (text or "").strip():
        return None
    seconds = of_go((text or "").strip())
    return _seconds(text, where, "duration") if seconds is None else seconds


def _seconds(text: str | None, where: str, column: str) -> float:
    text = (text or "").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = datetime.fromisoformat(text).timestamp()
        except ValueError:
            seconds = inf
    if not isfinite(seconds) or seconds < 0:
        raise SourceError(where, f"{column} {text!r:.40}, expected seconds, or a time such as 2026-11-26T08:00:00Z")
    return seconds
