"""Structural schemas of custom resources: pruning, defaulting and validation.

The sandbox must reject an exporter's misspelt field or number as a string just as a real cluster does: unknown fields
are dropped, absent fields are filled from `default`, and violations of `required`, types, enums, patterns or bounds are
a 422 with each cause. CEL rules (`x-kubernetes-validations`) and `oneOf`-style logic are not evaluated.
Source: k8s.io/apiextensions-apiserver/pkg/apiserver/{schema,validation}.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from sandbox.apiserver.errors import Json, cause

_OBJECT_META: Final[Json] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def prune(value: Json, schema: Json) -> tuple[Json, list[str]]:
    """Returns the object without fields the schema does not know, and the paths of what was dropped."""
    dropped: list[str] = []
    root = {**schema, "properties": {**(schema.get("properties") or {}), "metadata": _OBJECT_META}}
    for name in ("apiVersion", "kind"):
        root["properties"].setdefault(name, {"type": "string"})
    return _prune(value, root, "", dropped), dropped


def _prune(value: Any, schema: Json, path: str, dropped: list[str]) -> Any:
    if isinstance(value, list):
        items = schema.get("items")
        if items is None:
            return value
        return [_prune(item, items, f"{path}[{i}]", dropped) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    properties: Json = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    keeps_unknown = schema.get("x-kubernetes-preserve-unknown-fields") is True or extra is True
    known: Json = {}
    for name, inner in value.items():
        place = f"{path}.{name}" if path else name
        if name in properties:
            known[name] = _prune(inner, properties[name], place, dropped)
        elif isinstance(extra, dict):
            known[name] = _prune(inner, extra, place, dropped)
        elif keeps_unknown:
            known[name] = inner
        else:
            dropped.append(place)
    return known


def default(value: Any, schema: Json) -> Any:
    """Returns the value with absent fields filled in from the schema's defaults."""
    if isinstance(value, list) and "items" in schema:
        return [default(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, inner in (schema.get("properties") or {}).items():
        # A null where null is not allowed counts as absent once there is a default.
        if "default" in inner and (name not in filled or (filled[name] is None and not inner.get("nullable"))):
            filled[name] = inner["default"]
        if name in filled:
            filled[name] = default(filled[name], inner)
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        known = schema.get("properties") or {}
        filled = {name: inner if name in known else default(inner, extra) for name, inner in filled.items()}
    return filled


def validate(value: Json, schema: Json) -> list[Json]:
    """What is wrong with the object, as causes of a 422; empty when it is fine."""
    causes: list[Json] = []
    _validate(value, schema, "", causes)
    return causes


def _validate(value: Any, schema: Json, path: str, causes: list[Json]) -> None:
    if value is None and (schema.get("nullable") or not path):
        return
    wrong = _wrong_type(value, schema)
    if wrong:
        shown = _go_type(value)
        message = f'Invalid value: "{shown}": {path or "body"} in body must be of type {wrong}: "{shown}"'
        causes.append(cause("FieldValueTypeInvalid", message, path or "<nil>"))
        return
    _validate_scalar(value, schema, path, causes)
    if isinstance(value, list):
        for i, item in enumerate(value):
            _validate(item, schema.get("items") or {}, f"{path}[{i}]", causes)
    elif isinstance(value, dict):
        _validate_object(value, schema, path, causes)


def _validate_object(value: Json, schema: Json, path: str, causes: list[Json]) -> None:
    causes += [
        cause("FieldValueRequired", "Required value", f"{path}.{name}" if path else name)
        for name in schema.get("required") or ()
        if name not in value
    ]
    properties: Json = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    for name, inner in value.items():
        place = f"{path}.{name}" if path else name
        if name in properties and place != "metadata":
            _validate(inner, properties[name], place, causes)
        elif name not in properties and isinstance(extra, dict):
            _validate(inner, extra, place, causes)


def _wrong_type(value: Any, schema: Json) -> str | None:
    """The type the value should have had, None when it has it."""
    if schema.get("x-kubernetes-int-or-string"):
        return None if isinstance(value, (int, str)) and not isinstance(value, bool) else "integer,string"
    expected: str | None = schema.get("type")
    if expected is None:
        return None
    if isinstance(value, bool):
        return None if expected == "boolean" else expected
    if expected == "integer" and isinstance(value, float) and value.is_integer():
        return None
    return None if isinstance(value, _TYPES[expected]) else expected


def _go_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for name, types in _TYPES.items():
        if isinstance(value, types):
            return name
    return "null"


def _validate_scalar(value: Any, schema: Json, path: str, causes: list[Json]) -> None:
    def refuse(message: str) -> None:
        causes.append(cause("FieldValueInvalid", f"Invalid value: {json.dumps(value)}: {path} in body {message}", path))

    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(json.dumps(item) for item in schema["enum"])
        message = f"Unsupported value: {json.dumps(value)}: supported values: {allowed}"
        causes.append(cause("FieldValueNotSupported", message, path))
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        refuse(f"should match '{schema['pattern']}'")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            refuse(f"should be greater than or equal to {schema['minimum']}")
        if "maximum" in schema and value > schema["maximum"]:
            refuse(f"should be less than or equal to {schema['maximum']}")
    for bound, kind, word in (("Length", str, "chars long"), ("Items", list, "items")):
        if isinstance(value, kind):
            if len(value) < schema.get(f"min{bound}", 0):
                refuse(f"should have at least {schema[f'min{bound}']} {word}")
            if len(value) > schema.get(f"max{bound}", len(value)):
                refuse(f"should have at most {schema[f'max{bound}']} {word}")
