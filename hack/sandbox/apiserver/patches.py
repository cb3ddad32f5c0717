"""Merge patch and strategic merge patch as functions of values.

Strategic merge is a merge patch that joins some lists by a key. Which lists is written in the Go struct tags; the few
that matter to nodes and pods are in `listkeys`, every other list is replaced whole. Of the directives, `$patch`
(delete, replace), `$deleteFromPrimitiveList` and `$retainKeys` are obeyed; `$setElementOrder` is dropped, since the
order of elements carries no meaning here. Custom resources do not take strategic merge patches (415), as in reality.
JSON patches are not served: nothing here sends them.
None of the functions changes its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
