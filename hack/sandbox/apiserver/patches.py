"""JSON patch, merge patch and strategic merge patch as functions of values.

Strategic merge is a merge patch that joins some lists by a key. Which lists is written in the Go struct tags; the few
that matter to nodes and pods are in `listkeys`, every other list is replaced whole. Of the directives, `$patch`
(delete, replace), `$deleteFromPrimitiveList` and `$retainKeys` are obeyed; `$setElementOrder` is dropped, since the
order of elements carries no meaning here. Custom resources do not take strategic merge patches (415), as in reality.
None of the functions changes its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandbox.apiserver.errors import Json, bad_request, unprocessable
from sandbox.apiserver.integers import integer

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null deletes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def strategic(target: Any, patch: Any, keys: Mapping[str, str]) -> Any:
    """Strategic merge. `keys` maps a list's field name to the field that identifies its elements."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    merged = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        merged = {name: value for name, value in merged.items() if name in patch["$retainKeys"]}
    for name, value in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            merged[field] = [item for item in merged.get(field) or () if item not in value]
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None or (isinstance(value, dict) and value.get("$patch") == "delete"):
            merged.pop(name, None)
        elif isinstance(value, list):
            merged[name] = _strategic_list(merged.get(name) or [], value, name, keys)
        else:
            merged[name] = strategic(merged.get(name), value, keys)
    return merged


def _strategic_list(target: list[Any], patch: list[Any], name: str, keys: Mapping[str, str]) -> list[Any]:
    key = _key_of(name, patch, keys)
    if key is None:
        # Finalizers are the only list of plain values that merges (patchStrategy without a key).
        return [*target, *(item for item in patch if item not in target)] if name == "finalizers" else patch
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if item.get("$patch") != "replace"]
    merged = list(target)
    for item in patch:
        position = next((i for i, existing in enumerate(merged) if existing.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            merged = [existing for existing in merged if existing.get(key) != item.get(key)]
        elif position is None:
            merged.append(strategic({}, item, keys))
        else:
            merged[position] = strategic(merged[position], item, keys)
    return merged


def _key_of(name: str, patch: list[Any], keys: Mapping[str, str]) -> str | None:
    if not all(isinstance(item, dict) for item in patch):
        return None
    # A container's ports are keyed by containerPort, a service's by port: the same field name, told apart by content.
    if name == "ports":
        return "containerPort" if any("containerPort" in item for item in patch) else "port"
    return keys.get(name)


def json_patch(document: Any, operations: Any) -> Any:
    """Applies RFC 6902. Raises StatusError 400 for a malformed patch, 422 if it does not fit the document."""
    if not isinstance(operations, list) or not all(isinstance(op, dict) for op in operations):
        raise bad_request("error decoding patch: expected a list of operations")
    for operation in operations:
        document = _apply_operation(document, operation)
    return document


def _apply_operation(document: Any, operation: Json) -> Any:
    op, path = operation.get("op"), _pointer(operation.get("path"))
    if op in ("add", "replace", "test") and "value" not in operation:
        raise bad_request(f"{op} operation has no value")
    match op:
        case "add":
            return _edit(document, path, "add", operation["value"])
        case "replace":
            return _edit(document, path, "replace", operation["value"])
        case "remove":
            return _edit(document, path, "remove", None)
        case "copy":
            return _edit(document, path, "add", _read(document, _pointer(operation.get("from"))))
        case "move":
            source = _pointer(operation.get("from"))
            return _edit(_edit(document, source, "remove", None), path, "add", _read(document, source))
        case "test":
            if not _same(_read(document, path), operation["value"]):
                raise unprocessable("the server rejected our request due to an error in our request")
            return document
    raise bad_request(f"unexpected kind of patch operation: {op!r}")


def _same(a: Any, b: Any) -> bool:
    # JSON tells true from 1, Python does not.
    return type(a) is type(b) and a == b


def _pointer(text: Any) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise bad_request(f"invalid JSON pointer {text!r}")
    return [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]


def _read(document: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list):
            document = document[_index(step, len(document) - 1)]
        else:
            raise _missing(step)
    return document


def _edit(document: Any, path: list[str], how: str, value: Any) -> Any:
    """Returns a copy of the document with a changed value."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(document, dict):
        if step not in document and (rest or how != "add"):
            raise _missing(step)
        changed = dict(document)
        if rest or how != "remove":
            changed[step] = _edit(document.get(step), rest, how, value)
        else:
            del changed[step]
        return changed
    if isinstance(document, list):
        return _edit_list(document, step, rest, how, value)
    raise _missing(step)


def _edit_list(items: list[Any], step: str, rest: list[str], how: str, value: Any) -> list[Any]:
    changed = list(items)
    if rest or how == "replace":
        index = _index(step, len(items) - 1)
        changed[index] = _edit(items[index], rest, how, value)
    elif how == "remove":
        del changed[_index(step, len(items) - 1)]
    else:
        changed.insert(len(items) if step == "-" else _index(step, len(items)), value)
    return changed


def _index(step: str, last: int) -> int:
    index = integer(step)
    if index is None or not 0 <= index <= last:
        raise _missing(step)
    return index


def _missing(step: str) -> Exception:
    return unprocessable(f"the server rejected our request due to an error in our request: no {step!r} in the object")
