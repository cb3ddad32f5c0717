"""Who owns which fields: `metadata.managedFields`, plain writes and server-side apply.

Every write is attributed to its field manager. A plain write (POST, PUT, the other patches) takes ownership of the
fields that it changes. An apply owns only the fields that it declares, conflicts when another manager declares a field
with another value, and removes fields that it declared last time and that no other manager owns. A write without a
change leaves the object, its resourceVersion and the timestamps unchanged; exporters rely on that.

A field is a path of steps in the format of FieldsV1: `f:zones` for a field, `k:{"uid":"1"}` for an owner reference.
Every other list is a single field, as the zones of a NodeResourceTopology are; lists of built-in kinds that a real
server takes apart (containers, conditions) are single fields here.
Source: k8s.io/apimachinery/pkg/util/managedfields and sigs.k8s.io/structured-merge-diff/merge.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sandbox.apiserver.errors import Json, StatusError

Path = tuple[str, ...]
FieldSet = frozenset[Path]

# Not owned by anyone: identity and what the server itself writes.
_UNOWNED_METADATA: Final = frozenset(
    {
        "name", "namespace", "generateName", "uid", "resourceVersion", "generation", "creationTimestamp",
        "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields",
    }
)  # fmt: skip
_OWNERS: Final = ("f:metadata", "f:ownerReferences")
_ELEMENT: Final = "\0element"


@dataclass(frozen=True)
class Writer:
    """Who writes, as the entry in managedFields will say."""

    manager: str
    operation: str  # "Apply" or "Update"
    api_version: str
    time: str
    subresource: str = ""

    def owns(self, entry: Json) -> bool:
        return (
            entry.get("manager") == self.manager
            and entry.get("operation") == self.operation
            and entry.get("subresource", "") == self.subresource
            and (entry.get("apiVersion") == self.api_version or self.operation == "Apply")
        )

    def entry(self, owned: FieldSet) -> Json:
        entry: Json = {
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _to_v1(owned),
        }
        return entry | ({"subresource": self.subresource} if self.subresource else {})


def record_update(old: Json | None, new: Json, writer: Writer) -> Json:
    """`new` with the fields that differ from `old` attributed to the writer. `old` None: created."""
    # A single empty entry is the documented way to clear all managed fields.
    if new["metadata"].get("managedFields") == [{}]:
        return _with_entries(new, [])
    before = _fields(old) if old else {}
    # What a create says of the status is the server's doing, or the status subresource's.
    after = _fields(new, without=None if old else "status")
    taken = {path for path, value in after.items() if path not in before or before[path] != value}
    entries = _entries(old) if old else []
    dropped = before.keys() - after.keys()
    if not taken and not dropped:
        return _with_entries(new, entries)
    own = next((_owned(entry) for entry in entries if writer.owns(entry)), frozenset()) - dropped | taken
    others = [(entry, _owned(entry) - dropped - taken) for entry in entries if not writer.owns(entry)]
    unchanged = [{**entry, "fieldsV1": _to_v1(left)} for entry, left in others if left]
    return _with_entries(new, [*unchanged, writer.entry(own)] if own else unchanged)


def apply(live: Json, config: Json, writer: Writer, *, force: bool) -> Json:
    """Returns the live object after an apply of `config`. Raises StatusError 409 naming every contested field."""
    declared, before = frozenset(_fields(config)), _fields(live)
    entries = _entries(live)
    previous = next((entry for entry in entries if writer.owns(entry)), None)
    last = _owned(previous) if previous else frozenset()
    others = [entry for entry in entries if not writer.owns(entry)]
    elsewhere = {path for entry in others for path in _owned(entry)}
    merged = _merged(live, config, ())
    # Shortest first: an owner reference goes whole, and what was inside it is gone with it.
    for path in sorted(last - declared, key=len):
        if not any(owned[: len(path)] == path for owned in elsewhere):
            merged = _without(merged, path)
    after = _fields(merged)
    taken = {path for path, value in after.items() if path not in before or before[path] != value}
    contested = [(entry, path) for entry in others for path in sorted(_owned(entry) & taken)]
    if contested and not force:
        raise _conflict(contested)
    left = [
        (entry, frozenset(path for path in _owned(entry) - taken if path in after or not before.get(path)))
        for entry in others
    ]
    own_entry = writer.entry(declared)
    if previous and not taken and before.keys() == after.keys() and last == declared:
        # Nothing moved: the old timestamp stays, so that the write is seen to be a no-op.
        own_entry["time"] = previous.get("time", writer.time)
    return _with_entries(merged, [own_entry, *({**entry, "fieldsV1": _to_v1(kept)} for entry, kept in left if kept)])


def _conflict(contested: list[tuple[Json, Path]]) -> StatusError:
    causes = []
    for entry, path in contested:
        who = f'"{entry.get("manager", "")}"'
        if entry.get("operation") == "Update":
            who += f" using {entry.get('apiVersion')} at {entry.get('time')}"
        field = "".join(f".{step[2:]}" if step.startswith("f:") else f"[{step[3:-1]}]" for step in path)
        causes.append({"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": field})
    said = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    text = f"Apply failed with {len(causes)} conflict{'s' * (len(causes) > 1)}: {said}"
    return StatusError(409, "Conflict", text, {"causes": causes})


def _fields(obj: Json, *, without: str | None = None) -> dict[Path, Any]:
    """Returns every ownable field with its value, leaving out the top-level field `without`."""
    values: dict[Path, Any] = {}
    metadata = {name: value for name, value in obj.get("metadata", {}).items() if name not in _UNOWNED_METADATA}
    ownable = {name: value for name, value in obj.items() if name not in ("apiVersion", "kind", "metadata", without)}
    for name, value in {**ownable, **({"metadata": metadata} if metadata else {})}.items():
        _flatten(value, (f"f:{name}",), values)
    return values


def _flatten(value: Any, path: Path, values: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            _flatten(inner, (*path, f"f:{name}"), values)
    elif path == _OWNERS and value:
        for owner in value:
            values[*path, _step(owner)] = _ELEMENT
            _flatten(owner, (*path, _step(owner)), values)
    else:
        values[path] = value


def _step(owner: Json) -> str:
    return "k:" + json.dumps({"uid": owner.get("uid")}, separators=(",", ":"))


def _merged(live: Any, config: Any, path: Path) -> Any:
    if isinstance(live, dict) and isinstance(config, dict):
        inner = {name: _merged(live.get(name), value, (*path, f"f:{name}")) for name, value in config.items()}
        return {**live, **inner}
    if path == _OWNERS and live:
        declared = {_step(owner): owner for owner in config}
        kept = [_merged(owner, declared.pop(_step(owner), {}), ()) for owner in live]
        return [*kept, *declared.values()]
    return config


def _without(value: Any, path: Path) -> Any:
    """Returns a copy without the field; maps it leaves empty go too."""
    step, rest = path[0], path[1:]
    if isinstance(value, list):
        kept = [owner if _step(owner) != step else _without(owner, rest) if rest else None for owner in value]
        return [owner for owner in kept if owner is not None]
    if not isinstance(value, dict) or step[2:] not in value:
        return value
    inner = _without(value[step[2:]], rest) if rest else None
    left = {name: inner if name == step[2:] else other for name, other in value.items()}
    return {name: other for name, other in left.items() if name != step[2:] or other not in (None, {}, [])}


def _to_v1(fields: Iterable[Path]) -> Json:
    """Returns the FieldsV1 object of a set."""
    root: Json = {}
    ordered = sorted(fields)
    for path, following in itertools.pairwise([*ordered, ()]):
        node = root
        for step in path:
            node = node.setdefault(step, {})
        # A path that is a field and also a prefix of other paths has a dot as its own entry.
        if following[: len(path)] == path:
            node["."] = {}
    return root


def _owned(entry: Json) -> FieldSet:
    paths: set[Path] = set()

    def descend(node: Json, path: Path) -> None:
        if not node or "." in node:
            paths.add(path)
        for step, inner in node.items():
            if step != ".":
                descend(inner, (*path, step))

    for step, inner in (entry.get("fieldsV1") or {}).items():
        descend(inner, (step,))
    return frozenset(paths)


def _entries(obj: Json) -> list[Json]:
    entries: list[Json] = obj["metadata"].get("managedFields") or []
    return entries


def _with_entries(obj: Json, entries: list[Json]) -> Json:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": metadata | ({"managedFields": entries} if entries else {})}
