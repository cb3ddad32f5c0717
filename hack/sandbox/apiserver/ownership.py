"""Who owns which fields: `metadata.managedFields`, plain writes and server-side apply.

Every write is attributed to its field manager. A plain write (POST, PUT, the other patches) takes ownership of the
fields that it changes. An apply owns only the fields that it declares, conflicts when another manager declares a field
with another value, and removes fields that it declared last time and that no other manager owns. A write without a
change leaves the object, its resourceVersion and the timestamps unchanged; exporters rely on that.
Source: k8s.io/apimachinery/pkg/util/managedfields and sigs.k8s.io/structured-merge-diff/merge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandbox.apiserver import fields
from sandbox.apiserver.errors import Json, StatusError
from sandbox.apiserver.fields import FieldSet, Path, Rules


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
            "fieldsV1": fields.to_v1(owned),
        }
        return entry | ({"subresource": self.subresource} if self.subresource else {})


def record_update(old: Json | None, new: Json, writer: Writer, rules: Rules) -> Json:
    """`new` with the fields that differ from `old` attributed to the writer. `old` None: created."""
    if _resets_ownership(new):
        return _with_entries(new, [])
    before = fields.flatten(old, rules) if old else {}
    # What a create says of the status is the server's doing, or the status subresource's.
    after = fields.flatten(new, rules, without=None if old else "status")
    touched = {path for path, value in after.items() if path not in before or before[path] != value}
    entries = _entries(old) if old else []
    if not touched and len(after) == len(before):
        return _with_entries(new, entries)
    gone = before.keys() - after.keys()
    return _with_entries(new, _reassigned(entries, writer, taken=touched, dropped=gone))


def _resets_ownership(obj: Json) -> bool:
    # A single empty entry is the documented way to clear all managed fields.
    return bool(obj["metadata"].get("managedFields") == [{}])


def _reassigned(entries: list[Json], writer: Writer, *, taken: set[Path], dropped: set[Path]) -> list[Json]:
    unchanged: list[Json] = []
    own: FieldSet = frozenset()
    for entry in entries:
        owned = fields.from_v1(entry.get("fieldsV1") or {}) - dropped
        if writer.owns(entry):
            own = owned
        elif remaining := owned - taken:
            unchanged.append({**entry, "fieldsV1": fields.to_v1(remaining)})
    own = frozenset(own | taken)
    return [*unchanged, writer.entry(own)] if own else unchanged


def apply(live: Json, config: Json, writer: Writer, rules: Rules, *, force: bool) -> Json:
    """Returns the live object after an apply of `config`. Raises StatusError 409 naming every contested field."""
    declared = frozenset(fields.flatten(config, rules))
    before = fields.flatten(live, rules)
    entries = _entries(live)
    last = next((_owned(entry) for entry in entries if writer.owns(entry)), frozenset())
    other_entries = [entry for entry in entries if not writer.owns(entry)]
    wanted_elsewhere = frozenset(path for entry in other_entries for path in _owned(entry))
    merged = _merge(live, config, (), rules)
    # Shortest first: an element of a list goes whole, and what was inside it is gone with it.
    for path in sorted(last - declared, key=len):
        if not any(elsewhere[: len(path)] == path for elsewhere in wanted_elsewhere):
            merged = _without(merged, path)
    after = fields.flatten(merged, rules)
    touched = {path for path, value in after.items() if path not in before or before[path] != value}
    contested = [(entry, sorted(_owned(entry) & touched)) for entry in other_entries]
    contested = [(entry, paths) for entry, paths in contested if paths]
    if contested and not force:
        raise _conflict(contested)
    unchanged: list[Json] = []
    for entry in other_entries:
        remaining = frozenset(path for path in _owned(entry) - touched if path in after or not before.get(path))
        if remaining:
            unchanged.append({**entry, "fieldsV1": fields.to_v1(remaining)})
    own_entry = writer.entry(declared)
    previous = next((entry for entry in entries if writer.owns(entry)), None)
    if previous and not touched and before.keys() == after.keys() and _owned(previous) == declared:
        # Nothing moved: the old timestamp stays, so that the write is seen to be a no-op.
        own_entry = {**own_entry, "time": previous.get("time", writer.time)}
    return _with_entries(merged, [own_entry, *unchanged])


def _conflict(contested: list[tuple[Json, list[Path]]]) -> StatusError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {_name(entry)}", "field": fields.to_text(path)}
        for entry, paths in contested
        for path in paths
    ]
    if len(causes) == 1:
        text = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        text = f"Apply failed with {len(causes)} conflicts: " + "\n".join(
            f"conflicts with {_name(entry)}:\n" + "\n".join(f"- {fields.to_text(path)}" for path in paths)
            for entry, paths in contested
        )
    return StatusError(409, "Conflict", text, {"causes": causes})


def _name(entry: Json) -> str:
    name = f'"{entry.get("manager", "")}"'
    if entry.get("subresource"):
        name += f' with subresource "{entry["subresource"]}"'
    if entry.get("operation") == "Update":
        name += f" using {entry.get('apiVersion')} at {entry.get('time')}"
    return name


def _merge(live: Any, config: Any, names: Path, rules: Rules) -> Any:
    if isinstance(live, dict) and isinstance(config, dict) and not (names and rules.is_atomic_map(names)):
        merged = dict(live)
        for name, value in config.items():
            merged[name] = _merge(live[name], value, (*names, name), rules) if name in live else value
        return merged
    if isinstance(live, list) and isinstance(config, list):
        if rules.is_set(names):
            return [*live, *(item for item in config if item not in live)]
        keys = rules.list_keys(names, [*live, *config])
        if keys:
            return _merge_elements(live, config, names, keys, rules)
    return config


def _merge_elements(live: list[Json], config: list[Json], names: Path, keys: tuple[str, ...], rules: Rules) -> Any:
    declared = {fields.key_step(item, keys): item for item in config}
    merged = []
    for item in live:
        step = fields.key_step(item, keys)
        merged.append(_merge(item, declared.pop(step), names, rules) if step in declared else item)
    return [*merged, *declared.values()]


def _without(value: Any, path: Path) -> Any:
    """Returns a copy without the field; containers it leaves empty go too."""
    step, rest = path[0], path[1:]
    kind, _, name = step.partition(":")
    if isinstance(value, dict) and kind == "f" and name in value:
        inner = _without(value[name], rest) if rest else None
        pruned = {k: v for k, v in value.items() if k != name}
        return pruned if inner in (None, {}, []) else {k: (inner if k == name else v) for k, v in value.items()}
    if isinstance(value, list):
        remaining = []
        for item in value:
            if not fields.is_element(item, step):
                remaining.append(item)
            elif rest:
                remaining.append(_without(item, rest))
        return remaining
    return value


def _entries(obj: Json) -> list[Json]:
    entries: list[Json] = obj["metadata"].get("managedFields") or []
    return entries


def _owned(entry: Json) -> FieldSet:
    return fields.from_v1(entry.get("fieldsV1") or {})


def _with_entries(obj: Json, entries: list[Json]) -> Json:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return {**obj, "metadata": metadata | ({"managedFields": entries} if entries else {})}
