"""Merge patch and strategic merge patch as functions of values.

Strategic merge is a merge patch that joins some lists by a key. Which lists is written in the Go struct tags of
k8s.io/api; the few that matter to nodes and pods are in `KEYS`, every other list is replaced whole. Of the directives,
`$patch` (delete, replace) and `$retainKeys` are obeyed; `$setElementOrder` is dropped, since the order of elements
carries no meaning here. Custom resources do not take strategic merge patches (415), as in reality. JSON patches are not
served: nothing here sends them.
None of the functions changes its arguments.
"""

from __future__ import annotations

from typing import Any, Final

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"

KEYS: Final = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "taints": "key",
    "topologySpreadConstraints": "topologyKey",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""By the name of a list: the field that identifies its elements."""


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


def strategic(target: Any, patch: Any) -> Any:
    """Strategic merge of a built-in kind."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    merged = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        merged = {name: value for name, value in merged.items() if name in patch["$retainKeys"]}
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None or (isinstance(value, dict) and value.get("$patch") == "delete"):
            merged.pop(name, None)
        elif isinstance(value, list) and name in KEYS and all(isinstance(item, dict) for item in value):
            merged[name] = _joined(merged.get(name) or [], value, KEYS[name])
        else:
            merged[name] = strategic(merged.get(name), value)
    return merged


def _joined(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if item.get("$patch") != "replace"]
    merged = list(target)
    for item in patch:
        position = next((i for i, existing in enumerate(merged) if existing.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            merged = [existing for existing in merged if existing.get(key) != item.get(key)]
        elif position is None:
            merged.append(strategic({}, item))
        else:
            merged[position] = strategic(merged[position], item)
    return merged
