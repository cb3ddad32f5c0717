"""The JSONPath of printer columns: fields, indices, filters by equality.

CRDs are held to "simple" paths; this is the subset of k8s.io/client-go/util/jsonpath they use, with its quirks: a
missing field yields nothing, an index outside the list is an error (an empty cell), a filter compares for equality.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

Step = Callable[[list[Any]], list[Any]]

_TOKEN = re.compile(
    r"""\.?(?P<name>(?:[A-Za-z0-9_-]|\\.)+)
      | \.?\[(?P<quoted>'(?:[^'])*'|"(?:[^"])*")\]
      | \.?\[\?\(\s*@\.?(?P<left>[^=!<>\s)]+)\s*(?P<op>==|!=)\s*(?P<right>"[^"]*"|'[^']*'|[^)\s]+)\s*\)\]
      | \.?\[(?P<index>\d+)\]
    """,
    re.VERBOSE,
)


class PathError(ValueError):
    """A path that cannot be read, or that does not fit the object."""


@lru_cache(maxsize=512)
def parse(path: str) -> tuple[Step, ...]:
    """Returns the steps of a path such as `.attributes[?(@.name=="a")].value`. Raises PathError."""
    steps: list[Step] = []
    text = path.removeprefix("$")
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.end() == position:
            raise PathError(f"unrecognized path {path!r} at {text[position:]!r}")
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def find(path: str, obj: Any) -> list[Any]:
    """Returns every value the path leads to. Raises PathError."""
    values = [obj]
    for step in parse(path):
        values = step(values)
    return values


def _step(match: re.Match[str]) -> Step:
    if match["name"] or match["quoted"]:
        name = re.sub(r"\\(.)", r"\1", match["name"]) if match["name"] else match["quoted"][1:-1]
        return lambda values: [v[name] for v in values if isinstance(v, dict) and name in v]
    if match["left"]:
        return _filter(match["left"], match["op"], match["right"])
    return _at(int(match["index"]))


def _filter(left: str, operator: str, right: str) -> Step:
    expected = right[1:-1] if right[0] in "\"'" else json.loads(right)

    def step(values: list[Any]) -> list[Any]:
        items = [item for value in values if isinstance(value, list) for item in value]
        candidates = [(item, find("." + left, item)) for item in items]
        return [item for item, values in candidates if values and (values[0] == expected) is (operator == "==")]

    return step


def _at(index: int) -> Step:
    def step(values: list[Any]) -> list[Any]:
        try:
            return [value[index] for value in values]
        except (IndexError, KeyError, TypeError) as exc:
            raise PathError(f"array index out of bounds: index {index}") from exc

    return step


def to_text(value: Any) -> str:
    """Returns a result as text, as PrintResults writes it: lists and objects as JSON, scalars as Go prints them."""
    if isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)
