"""Detects other writers of our object, and limits how often we overwrite them. Pure.

A forced apply takes every field back, and its answer does not name the writer that it overwrote. The object's
generation shows it: the API server counts changes of the content, and each count beyond our own writes is another
writer's. The exporter reads the object back before it writes again, and finds the writer's name there.

Two writers that answer each other at once would keep the API server, etcd and every scheduler busy for nothing. So
after a write against another writer the exporter writes nothing for a minute, not even changes of its own: decision 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

FIELD_MANAGER: Final = "topowise-exporter"

UNKNOWN: Final = "unknown"
"""The name of a writer without a field manager."""

PAUSE_S: Final = 60.0
"""Minimum interval of two writes against another writer, plus up to a fifth at random, so that nodes do not
synchronise."""

# Shorter than the ten minutes after which TopowiseForeignWriter fires: a single manual edit raises no alert.
_FORGOTTEN_AFTER_S: Final = 540.0

# The fields that only we write. Labels, annotations and owner references are open to every writer.
_CONTENT_FIELDS: Final = frozenset(("f:zones", "f:attributes", "f:topologyPolicies", "f:spec"))

# A client without a field manager gets the name of its binary, which is the beginning of the user agent.
_PRODUCTS: Final[Mapping[str, str]] = {
    # Also in the image of numaresources-operator, which renames its own build to this name.
    "resource-topology-exporter": "resource-topology-exporter (RTE)",
    # Current versions apply server-side under the first name, older versions update the full object.
    "node-feature-discovery-topology-updater": "NFD's topology updater",
    "nfd-topology-updater": "NFD's topology updater",
    "koordlet": "Koordinator's koordlet",
    "koordinator-manager": "Koordinator's koord-manager",
    # volcano-sh/resource-exporter builds a binary of this name.
    "numatopo": "Volcano's resource-exporter",
    FIELD_MANAGER: "another topowise-exporter",
    UNKNOWN: "an unnamed writer",
}

# Metadata that identifies a writer whose fields were overwritten: (label or annotation, value or "" for any) ->
# manager.
_TRACES: Final[Mapping[tuple[str, str], str]] = {
    ("app.kubernetes.io/managed-by", "Koordinator"): "koordlet",
    ("k8stopoawareschedwg/rte-update", ""): "resource-topology-exporter",
}


def product(manager: str) -> str:
    """Returns a field manager with the product name that users know."""
    name = _PRODUCTS.get(manager)
    if name is None:
        name = "a user with kubectl" if manager.startswith("kubectl") else "an unknown writer"
    return name if manager in (UNKNOWN, FIELD_MANAGER) else f"{name} (field manager {manager})"


class StoredObject(msgspec.Struct, frozen=True):
    """The parts of the server's answer to a write or a read that are used."""

    class Metadata(msgspec.Struct, frozen=True):
        class Manager(msgspec.Struct, frozen=True):
            manager: str = ""
            operation: str = ""
            time: str = ""
            fieldsV1: dict[str, Any] = {}

        uid: str = ""
        resourceVersion: str = ""
        generation: int = 0
        labels: dict[str, str] | None = None
        annotations: dict[str, str] | None = None
        managedFields: tuple[Manager, ...] | None = None

    metadata: Metadata

    def writes(self) -> frozenset[tuple[str, str, str]]:
        """Returns the last write of each manager that owns content: (manager, operation, time)."""
        return frozenset(
            (entry.manager, entry.operation, entry.time)
            for entry in self.metadata.managedFields or ()
            if not _CONTENT_FIELDS.isdisjoint(entry.fieldsV1)
        )

    def traces(self) -> frozenset[str]:
        """Returns managers that left labels or annotations."""
        metadata = {**(self.metadata.labels or {}), **(self.metadata.annotations or {})}
        return frozenset(
            manager for (name, value), manager in _TRACES.items() if name in metadata and value in ("", metadata[name])
        )


class OtherWriters:
    """Tracks other writers by the server's answers. Every answer is passed to it once, in order."""

    def __init__(
        self,
        clock: Callable[[], float],
        uniform: Callable[[float, float], float],
    ) -> None:
        self._clock = clock
        self._uniform = uniform
        self._uid = ""
        self._generation = 0
        self._sent = 0
        self._writes: frozenset[tuple[str, str, str]] = frozenset()
        self._seen: dict[str, float] = {}
        self._opposed = False
        self._not_before = -float("inf")
        self.was_remade = False
        """Whether the object was deleted and recreated between the last two answers."""

    def names(self) -> frozenset[str]:
        """Returns field managers that wrote content in the last minutes."""
        now = self._clock()
        return frozenset(name for name, at in self._seen.items() if now - at < _FORGOTTEN_AFTER_S)

    def wait(self) -> float:
        """Returns seconds until the next write is allowed; 0 unless the last write overwrote another writer."""
        return max(0.0, self._not_before - self._clock())

    def sending(self) -> None:
        """Counts a write that is on its way: the server may apply it even if the answer is lost."""
        self._sent += 1

    def refused(self) -> None:
        """The server refused the write."""
        self._sent -= 1

    def lost(self) -> None:
        """The answer to the write was lost. A write against another writer is not repeated at once."""
        if self._opposed:
            self._pause()

    def answered(self, answer: StoredObject) -> None:
        """Notes the answer to our write, which has overwritten the fields of other writers."""
        if self._note(answer, own=True) or self._opposed:
            self._pause()
        self._opposed = False

    def read(self, answer: StoredObject, *, differs: bool) -> None:
        """Notes the object as read back. If it `differs` from what was written, the next write overwrites another
        writer."""
        is_foreign = self._note(answer, own=False)
        if differs:
            self._opposed = True
            if not is_foreign:
                self._remember(self._whose(answer, frozenset()))

    def unreadable(self) -> None:
        """An answer did not decode: the next answer is compared with nothing."""
        self._uid = ""

    def _note(self, answer: StoredObject, *, own: bool) -> bool:
        """Whether another writer has changed content since the last answer."""
        metadata, writes = answer.metadata, answer.writes()
        self.was_remade = bool(self._uid) and metadata.uid != self._uid
        # A recreated object counts generations from the start.
        previous_generation = self._generation if metadata.uid == self._uid else 0
        is_foreign = bool(self._uid) and metadata.generation - previous_generation > self._sent
        if is_foreign:
            managers = frozenset(manager for manager, _, _ in writes - self._writes)
            self._remember(self._whose(answer, managers - {FIELD_MANAGER} if own else managers))
        self._uid, self._generation, self._sent, self._writes = metadata.uid, metadata.generation, 0, writes
        return is_foreign

    def _whose(self, answer: StoredObject, managers: frozenset[str]) -> Iterable[str]:
        return managers - {FIELD_MANAGER} or managers or self.names() or answer.traces() or {UNKNOWN}

    def _remember(self, names: Iterable[str]) -> None:
        now = self._clock()
        self._seen = {name: at for name, at in self._seen.items() if now - at < _FORGOTTEN_AFTER_S}
        self._seen.update(dict.fromkeys(names, now))
        if len(self._seen) > 1:
            self._seen.pop(UNKNOWN, None)

    def _pause(self) -> None:
        self._not_before = self._clock() + self._uniform(PAUSE_S, 1.2 * PAUSE_S)
