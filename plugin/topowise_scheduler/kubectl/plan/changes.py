"""The texts from which a plan is made: changes, and traces of pods.

A change is KEY=VALUE, separated by spaces. A trace is CSV with a header: `time` and `duration` are seconds, RFC 3339
and Go's durations also count; `shape` is the name of a workload of -f, or amounts: `cpu=8 memory=32Gi
nvidia.com/gpu=1`; `count` is optional.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import product
from math import inf, isfinite
from typing import Any, Final

import msgspec

from topowise import cpuset, digits
from topowise.errors import ParseError, SourceError
from topowise.pods import amount_of
from topowise_scheduler.kubectl.console import go_seconds
from topowise_scheduler.overlay.plan import Arrival, Change, Workload, pod_of

_MOST: Final = 10_000
_LEVELS: Final = ".."
_NODES: Final = "selector"

Nodes = Callable[[str], tuple[str, ...]]
"""Returns the names of the nodes that a label selector selects."""
_SIMPLE: Final[Mapping[str, str]] = {
    "policy": "policy",
    "scope": "scope",
    "cpu-manager": "cpu_manager",
    "memory-manager": "memory_manager",
    "reserved-cpus": "reserved_cpus",
    "version": "version",
    "numa": "numa",
    "scheduler": "scheduler",
    "steering": "steering",
    "moves": "moves",
}
KEYS: Final = (
    *_SIMPLE,
    "topology.OPTION",
    "cpu.OPTION",
    "reserved-memory",
    "add",
    "remove",
    _NODES,
    "name",
)
"""The keys of a change."""
MOST_ROWS: Final = 200_000
_MOST_COUNT: Final = 10_000
_COLUMNS: Final = ("time", "shape", "duration")


def parse(text: str, nodes: Nodes) -> list[Change]:
    """Returns the change; several changes if a number is a range, such as `add=n1*1..4`. Raises SourceError."""
    options: list[list[tuple[str, object]]] = []
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise _error(text, f"{exc}, expected closed quotes") from exc
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not value:
            raise _error(text, f"{word!r:.80}, expected KEY=VALUE")
        options.append(list(_levels(text, key, value)))
    if not options:
        raise _error(text, "is empty, expected KEY=VALUE")
    return [_change(text, words, level, nodes) for level in product(*options)]


def _change(text: str, words: list[str], options: tuple[tuple[str, object], ...], nodes: Nodes) -> Change:
    fields: dict[str, Any] = {"name": " ".join(words)}
    for key, value in options:
        if key == "name":
            fields["name"] = value
        elif key == _NODES:
            fields["nodes"] = nodes(str(value))
            if not fields["nodes"]:
                raise _error(text, f"{_NODES}={value}: selects no node, expected labels of some nodes")
        elif key in _SIMPLE:
            fields[_SIMPLE[key]] = value
        else:
            _add(text, fields, key, value)
    if isinstance(fields.get("add"), Mapping) and any(_LEVELS in word for word in words):
        added = [f"add={name}*{count}" for name, count in fields["add"].items()]
        fields["name"] = " ".join([*(word for word in words if not word.startswith("add=")), *added])
    return Change(**fields)


def _levels(text: str, key: str, value: str) -> list[tuple[str, object]]:
    """Returns the values of an option; a range of numbers of nodes has several."""
    if key == "add":
        name, separator, count = value.rpartition("*")
        first, _, last = (count if separator else "1").partition(_LEVELS)
        low, high = _natural(text, key, first), _natural(text, key, last or first)
        if low > high:
            raise _error(text, f"add={value}: {low} is more than {high}, expected the lower number first")
        return [(key, {name if separator else value: number}) for number in range(low, high + 1)]
    if key in ("numa", "moves"):
        return [(key, _natural(text, key, value))]
    if key == "steering":
        if value not in ("on", "off"):
            raise _error(text, f"steering={value}: expected on or off")
        return [(key, value == "on")]
    if key == "reserved-cpus":
        try:
            cpuset.parse(value)
        except ParseError as exc:
            raise _error(text, f"{key}: {exc}") from exc
    return [(key, value)]


def _natural(text: str, key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or not 0 < int(value[:6]) <= _MOST or len(value) > len(str(_MOST)):
        raise _error(text, f"{key}={value:.40}: expected a number from 1 to {_MOST}")
    return int(value)


def _add(text: str, fields: dict[str, Any], key: str, value: object) -> None:
    """Adds an option that may be given several times."""
    if key == "remove":
        fields["remove"] = (*fields.get("remove", ()), *str(value).split(","))
        return
    if key == "add":
        assert isinstance(value, Mapping)
        fields["add"] = {**fields.get("add", {}), **value}
        return
    prefix, _, name = key.partition(".")
    field = {"topology": "topology_options", "cpu": "cpu_options"}.get(prefix)
    if field and name:
        fields[field] = {**fields.get(field, {}), name: value}
        return
    if key == "reserved-memory":
        fields["reserved_memory"] = _reserved(text, str(value))
        return
    raise _error(text, f"{key!r:.80}, expected {', '.join(KEYS)}")


def _reserved(text: str, value: str) -> dict[int, str]:
    """Returns "0:1Gi,1:1Gi" as quantities by NUMA node."""
    by_node: dict[int, str] = {}
    for part in value.split(","):
        number, separator, amount = part.partition(":")
        numa = digits.natural(number, 4)
        if not separator or numa is None or not amount:
            raise _error(text, f"reserved-memory={value:.80}: expected NUMA-NODE:QUANTITY, such as 0:1Gi,1:1Gi")
        by_node[numa] = amount
    return by_node


def _error(text: str, problem: str) -> SourceError:
    return SourceError(f"--change {text!r:.120}", problem)


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
    seconds = go_seconds((text or "").strip())
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
