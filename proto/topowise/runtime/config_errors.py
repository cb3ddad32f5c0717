"""What a configuration error says beside where it is: the choices there are, and the one that was probably meant.

msgspec names the path and what is wrong there. Which names and values would have been right is in the types, so it is
looked up by that path; nothing about a single kind is written down here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

_WHERE: Final = re.compile(r"(?P<problem>.*?)(?: - at `(?P<path>\$[^`]*)`)?", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_VALUE: Final = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)
_STEP: Final = re.compile(r"\.(\w+)|\[[^\]]*\]")


def explained(kind: type[msgspec.Struct], message: str) -> str:
    """The message of a ValidationError for this type with the choices there are, if it is about a choice."""
    where = _WHERE.fullmatch(message)
    if where is None:
        raise AssertionError(f"nothing is not matched: {message!r}")
    problem, path = where["problem"], where["path"] or "$"
    at = f" - at `{path}`" if where["path"] else ""
    if unknown := _UNKNOWN.fullmatch(problem):
        given, known = unknown[1], [name for one in _types(kind, path) for name in _fields(one)]
        return f"unknown field {given!r:.80}, {_instead(given, known)}{at}" if known else message
    if value := _VALUE.fullmatch(problem):
        given, known = value[1].strip("'"), [choice for one in _types(kind, path) for choice in _choices(one)]
        return f"{value[1]:.80} is not known, {_instead(given, known)}{at}" if known else message
    return message


def _instead(given: str, known: Sequence[str]) -> str:
    """Upper and lower case are what people get wrong most; of numbers none is near another."""
    expected = f"expected {known[0]}" if len(known) == 1 else f"expected one of {', '.join(known)}"
    by_lower = {one.lower(): one for one in known if not one.isdigit()}
    near = difflib.get_close_matches(given.lower()[:80], list(by_lower), n=1)
    return f"{expected}; did you mean {by_lower[near[0]]}?" if near and len(known) > 1 else expected


def _types(kind: type[msgspec.Struct], path: str) -> list[inspect.Type]:
    """What may be at the path: more than one type if it is a union."""
    found = list(_members(inspect.type_info(kind)))
    for step in _STEP.finditer(path):
        found = [inner for one in found for inner in _inside(one, step[1], path)]
    return found


def _members(one: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(one, inspect.UnionType):
        for member in one.types:
            yield from _members(member)
    elif isinstance(one, inspect.Metadata):
        yield from _members(one.type)
    else:
        yield one


def _inside(one: inspect.Type, name: str | None, path: str) -> Iterator[inspect.Type]:
    if isinstance(one, inspect.StructType):
        if name == one.tag_field and path == f"$.{name}":
            yield inspect.LiteralType((one.tag,))
        for field in one.fields:
            if field.encode_name == name:
                yield from _members(field.type)
    elif isinstance(one, inspect.DictType):
        yield from _members(one.value_type)
    elif name is None and isinstance(one, inspect.VarTupleType | inspect.ListType):
        yield from _members(one.item_type)


def _fields(one: Any) -> list[str]:
    return [field.encode_name for field in one.fields] if isinstance(one, inspect.StructType) else []


def _choices(one: Any) -> list[str]:
    return [str(value) for value in one.values] if isinstance(one, inspect.LiteralType) else []
