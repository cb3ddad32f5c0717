"""The text of a change: KEY=VALUE, separated by spaces."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, Final

from topowise import cpuset, digits
from topowise.errors import ParseError, SourceError
from topowise_scheduler.overlay.plan import Change

_MOST: Final = 10_000
_LEVELS: Final = ".."
_NODES: Final = "selector"

Nodes = Callable[[str], tuple[str, ...]]
"""Returns the names of the nodes that a label selector selects."""


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
        fields["name"] = " ".join(
            word for word in (*(word for word in words if not word.startswith("add=")), _added(fields["add"]))
        )
    return Change(**fields)


def _added(add: Mapping[str, int]) -> str:
    return " ".join(f"add={name}*{count}" for name, count in add.items())


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
