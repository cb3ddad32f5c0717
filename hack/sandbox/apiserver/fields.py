"""Field sets: the fields of an object, their changes, and their two formats.

Server-side apply owns *fields*. A field is a path of steps in the format of FieldsV1: `f:zones` for a field,
`k:{"name":"a"}` for an element of an associative list, `v:"x"` for an element of a set. What counts as a field
depends on the schema: an atomic list or map is a single field whatever is in it (the `zones` of a
NodeResourceTopology), an associative list is taken apart. `Rules` answers that question for a kind.
Source: sigs.k8s.io/structured-merge-diff (`fieldpath`, `typed`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from sandbox.apiserver import listkeys
from sandbox.apiserver.errors import Json

Path = tuple[str, ...]
FieldSet = frozenset[Path]

# Not owned by anyone: identity and what the server itself writes.
_UNOWNED_METADATA = frozenset(
    {
        "name", "namespace", "generateName", "uid", "resourceVersion", "generation", "creationTimestamp",
        "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields",
    }
)  # fmt: skip
_MARKER = "\0element"


class Rules(Protocol):
    """How lists and maps at a place (field names only, without list elements) merge."""

    def list_keys(self, names: Path, items: list[Any]) -> tuple[str, ...] | None:
        """Returns the identifying fields of an associative list, None for an atomic list."""

    def is_set(self, names: Path) -> bool: ...

    def is_atomic_map(self, names: Path) -> bool: ...


class BuiltinRules:
    """Rules of the built-in kinds, by field name."""

    def list_keys(self, names: Path, items: list[Any]) -> tuple[str, ...] | None:
        if names[-1] == "ports":
            first = "containerPort" if any("containerPort" in item for item in items) else "port"
            return (first, "protocol")
        return listkeys.ASSOCIATIVE.get(names[-1])

    def is_set(self, names: Path) -> bool:
        return names[-1] in listkeys.SETS

    def is_atomic_map(self, names: Path) -> bool:
        return names[-1] in listkeys.ATOMIC_MAPS


class SchemaRules:
    """Rules a CRD's schema states by `x-kubernetes-list-type` and `-map-type`; lists are atomic by default."""

    def __init__(self, schema: Json) -> None:
        self._schema = schema

    def list_keys(self, names: Path, items: list[Any]) -> tuple[str, ...] | None:
        if names == ("metadata", "ownerReferences"):
            return ("uid",)
        schema = self._at(names)
        keys: list[str] = schema.get("x-kubernetes-list-map-keys") or []
        return tuple(keys) if schema.get("x-kubernetes-list-type") == "map" else None

    def is_set(self, names: Path) -> bool:
        return names == ("metadata", "finalizers") or self._at(names).get("x-kubernetes-list-type") == "set"

    def is_atomic_map(self, names: Path) -> bool:
        return self._at(names).get("x-kubernetes-map-type") == "atomic"

    def _at(self, names: Path) -> Json:
        schema = self._schema
        for name in names:
            schema = schema.get("items") or schema
            properties: Json = schema.get("properties") or {}
            extra = schema.get("additionalProperties")
            schema = properties.get(name) or (extra if isinstance(extra, dict) else {})
        return schema


def flatten(obj: Json, rules: Rules, *, without: str | None = None) -> dict[Path, Any]:
    """Returns every ownable field with its value, leaving out the top-level field `without`."""
    values: dict[Path, Any] = {}
    for name, value in obj.items():
        if name in ("apiVersion", "kind") or name == without:
            continue
        if name == "metadata":
            value = {k: v for k, v in value.items() if k not in _UNOWNED_METADATA}
            if not value:
                continue
        _flatten(value, (f"f:{name}",), (name,), rules, values)
    return values


def _flatten(value: Any, path: Path, names: Path, rules: Rules, values: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value and not rules.is_atomic_map(names):
        for name, inner in value.items():
            _flatten(inner, (*path, f"f:{name}"), (*names, name), rules, values)
        return
    if isinstance(value, list) and value:
        if rules.is_set(names):
            values.update({(*path, _value_step(item)): item for item in value})
            return
        keys = rules.list_keys(names, value)
        if keys:
            for item in value:
                element = (*path, key_step(item, keys))
                values[element] = _MARKER
                for name, inner in item.items():
                    _flatten(inner, (*element, f"f:{name}"), (*names, name), rules, values)
            return
    values[path] = value


def key_step(item: Json, keys: Iterable[str]) -> str:
    """Returns the step of an element of an associative list. A port's protocol is TCP when not said."""
    keys_of_item = {key: item.get(key, "TCP" if key == "protocol" else None) for key in sorted(keys)}
    return "k:" + json.dumps(keys_of_item, separators=(",", ":"))


def _value_step(item: Any) -> str:
    return "v:" + json.dumps(item, separators=(",", ":"))


def is_element(item: Any, step: str) -> bool:
    """Returns whether a step names the item of a list."""
    kind, _, rest = step.partition(":")
    if kind == "v":
        return _value_step(item) == step
    return kind == "k" and isinstance(item, dict) and key_step(item, msgspec.json.decode(rest)) == step


def to_v1(fields: Iterable[Path]) -> Json:
    """Returns the FieldsV1 object of a set."""
    root: Json = {}
    ordered = sorted(fields)
    for path in ordered:
        node = root
        for step in path:
            node = node.setdefault(step, {})
    # A path that is a field and also a prefix of other paths has a dot as its own entry.
    for path, following in itertools.pairwise(ordered):
        if following[: len(path)] == path:
            node = root
            for step in path:
                node = node[step]
            node["."] = {}
    return root


def from_v1(fields: Json) -> FieldSet:
    paths: set[Path] = set()

    def descend(node: Json, path: Path) -> None:
        if not node or "." in node:
            paths.add(path)
        for step, inner in node.items():
            if step != ".":
                descend(inner, (*path, step))

    for step, inner in fields.items():
        descend(inner, (step,))
    return frozenset(paths)


def to_text(path: Path) -> str:
    """Returns a path as conflict messages print it: `.spec.containers[name="a"].image`."""
    text = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            decoded = msgspec.json.decode(rest)
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in decoded.items()) + "]"
        else:
            text += f"[={rest}]"
    return text
