"""Explains a configuration error: the allowed values, and the value that was probably meant.

msgspec names the path and the problem. The allowed names and values are in the types, and are looked up by the path;
nothing here depends on a particular kind. A field that an earlier version had is explained by what takes its place.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

from topowise.runtime import removed_fields

_WHERE: Final = re.compile(r"(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_VALUE: Final = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)
_STEP: Final = re.compile(r"\.(\w+)|\[[^\]]*\]")


def explained(kind: type[msgspec.Struct], message: str) -> str:
    """Returns the message of a ValidationError for this type, with the allowed values if it is about a choice."""
    where = _WHERE.fullmatch(message)
    if where is None:
        raise AssertionError(f"nothing is not matched: {message!r}")
    problem, path = where["problem"], where["path"] or "$"
    at = f" - at `{path}`" if where["path"] else ""
    if unknown := _UNKNOWN.fullmatch(problem):
        text, known = unknown[1], [name for member in _types(kind, path) for name in _fields(member)]
        if instead := removed_fields.instead(kind.__name__, f"{path}.{text}".removeprefix("$.")):
            return f"field {text!r} is gone, instead: {instead}{at}"
        return f"unknown field {text!r:.80}, {_instead(text, known)}{at}" if known else message
    if value := _VALUE.fullmatch(problem):
        text, known = value[1].strip("'"), [choice for member in _types(kind, path) for choice in _choices(member)]
        return f"{value[1]:.80} is not known, {_instead(text, known)}{at}" if known else message
    return message


def _instead(text: str, known: Sequence[str]) -> str:
    """Returns the allowed values, with the nearest as a suggestion. A number is never similar to another number."""
    expected = f"expected {known[0]}" if len(known) == 1 else f"expected one of {', '.join(known)}"
    by_lower = {name.lower(): name for name in known if not name.isdigit()}
    matches = difflib.get_close_matches(text.lower()[:80], list(by_lower), n=1)
    return f"{expected}; did you mean {by_lower[matches[0]]}?" if matches and len(known) > 1 else expected


def _types(kind: type[msgspec.Struct], path: str) -> list[inspect.Type]:
    """Returns the types at the path: several if it is a union."""
    types = list(_members(inspect.type_info(kind)))
    for step in _STEP.finditer(path):
        types = [inner for kind_at_step in types for inner in _inside(kind_at_step, step[1], path)]
    return types


def _members(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for member in kind.types:
            yield from _members(member)
    elif isinstance(kind, inspect.Metadata):
        yield from _members(kind.type)
    else:
        yield kind


def _inside(kind: inspect.Type, name: str | None, path: str) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.StructType):
        if name == kind.tag_field and path == f"$.{name}":
            yield inspect.LiteralType((kind.tag,))
        for field in kind.fields:
            if field.encode_name == name:
                yield from _members(field.type)
    elif isinstance(kind, inspect.DictType):
        yield from _members(kind.value_type)
    elif name is None and isinstance(kind, inspect.VarTupleType | inspect.ListType):
        yield from _members(kind.item_type)


def _fields(kind: Any) -> list[str]:
    return [field.encode_name for field in kind.fields] if isinstance(kind, inspect.StructType) else []


def _choices(kind: Any) -> list[str]:
    return [str(value) for value in kind.values] if isinstance(kind, inspect.LiteralType) else []
