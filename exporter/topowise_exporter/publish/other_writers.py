"""Who else writes our object, and how often we write against them. Pure.

A forced apply takes every field back, so its answer does not name the one who was overwritten. What tells is the
object's generation: the API server counts changes of the content, and a count beyond our own is somebody else's. Their
names are found when the object is read back before we write again.

Two writers that answer each other at once would keep the API server, etcd and every scheduler busy for nothing. So
after a write that went against somebody else nothing is written for a minute, our own news neither: decision 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

FIELD_MANAGER: Final = "topowise-exporter"

UNKNOWN: Final = "unknown"
"""Stands for whoever left no name."""

PAUSE_S: Final = 60.0
"""At least so long between two writes against somebody else; up to a fifth more, so that nodes do not keep step."""

# Shorter than the ten minutes after which TopowiseForeignWriter fires: a single edit by hand wakes nobody.
_FORGOTTEN_AFTER_S: Final = 540.0

# What another writer must not touch; labels, annotations and owner references are anybody's.
_CONTENT_FIELDS: Final = frozenset(("f:zones", "f:attributes", "f:topologyPolicies", "f:spec"))

# Clients that set no field manager get the name of their binary, which is the beginning of the user agent.
_PRODUCTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Also in the image of numaresources-operator, which renames its own build to this.
        "resource-topology-exporter": "resource-topology-exporter (RTE)",
        # Server-side apply under the first name, full updates by older versions.
        "node-feature-discovery-topology-updater": "NFD's topology updater",
        "nfd-topology-updater": "NFD's topology updater",
        "koordlet": "Koordinator's koordlet",
        "koordinator-manager": "Koordinator's koord-manager",
        # volcano-sh/resource-exporter builds a binary of this name.
        "numatopo": "Volcano's resource-exporter",
        FIELD_MANAGER: "another topowise-exporter",
        UNKNOWN: "an unnamed writer",
    }
)

# Metadata by which a writer is known that lost its fields: (label or annotation, value or "" for any) -> manager.
_TRACES: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        ("app.kubernetes.io/managed-by", "Koordinator"): "koordlet",
        ("k8stopoawareschedwg/rte-update", ""): "resource-topology-exporter",
    }
)


def product(manager: str) -> str:
    """A field manager as people know it."""
    known = _PRODUCTS.get(manager)
    if known is None:
        known = "somebody with kubectl" if manager.startswith("kubectl") else "a writer that is not known here"
    return known if manager in (UNKNOWN, FIELD_MANAGER) else f"{known} (field manager {manager})"


class Answer(msgspec.Struct, frozen=True):
    """What matters of the server's answer to a write or a read."""

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
        """The last write of each owner of content: (manager, operation, time)."""
        return frozenset(
            (entry.manager, entry.operation, entry.time)
            for entry in self.metadata.managedFields or ()
            if not _CONTENT_FIELDS.isdisjoint(entry.fieldsV1)
        )

    def traces(self) -> frozenset[str]:
        """Managers that left labels or annotations."""
        held = {**(self.metadata.labels or {}), **(self.metadata.annotations or {})}
        return frozenset(
            manager for (name, value), manager in _TRACES.items() if name in held and value in ("", held[name])
        )


class OtherWriters:
    """What the server's answers tell of others. Each answer is shown to it once, in order."""

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
        """Whether the object of the last answer is another one than that of the answer before it."""

    def names(self) -> frozenset[str]:
        """Field managers that wrote content not long ago."""
        now = self._clock()
        return frozenset(name for name, at in self._seen.items() if now - at < _FORGOTTEN_AFTER_S)

    def wait(self) -> float:
        """Seconds until the next write; 0 unless the last one went against somebody."""
        return max(0.0, self._not_before - self._clock())

    def sending(self) -> None:
        """A write is on its way, and may count even if its answer never comes."""
        self._sent += 1

    def refused(self) -> None:
        """The write on its way was turned down."""
        self._sent -= 1

    def lost(self) -> None:
        """The write on its way was not answered; against somebody else it is not repeated at once."""
        if self._opposed:
            self._pause()

    def answered(self, answer: Answer) -> None:
        """To a write of ours, which has taken back what others had."""
        if self._note(answer, own=True) or self._opposed:
            self._pause()
        self._opposed = False

    def read(self, answer: Answer, *, differs: bool) -> None:
        """The object as it is now; `differs` from what was written: the next write goes against somebody."""
        is_foreign = self._note(answer, own=False)
        if differs:
            self._opposed = True
            if not is_foreign:
                self._remember(self._whose(answer, frozenset()))

    def unreadable(self) -> None:
        """An answer that does not decode; what comes next is compared with nothing."""
        self._uid = ""

    def _note(self, answer: Answer, *, own: bool) -> bool:
        """Whether others have changed content since the last answer."""
        meta, writes = answer.metadata, answer.writes()
        self.was_remade = bool(self._uid) and meta.uid != self._uid
        # Whoever deleted the object and made another began to count anew.
        counted = self._generation if meta.uid == self._uid else 0
        is_foreign = bool(self._uid) and meta.generation - counted > self._sent
        if is_foreign:
            fresh = frozenset(manager for manager, _, _ in writes - self._writes)
            self._remember(self._whose(answer, fresh - {FIELD_MANAGER} if own else fresh))
        self._uid, self._generation, self._sent, self._writes = meta.uid, meta.generation, 0, writes
        return is_foreign

    def _whose(self, answer: Answer, fresh: frozenset[str]) -> Iterable[str]:
        return fresh - {FIELD_MANAGER} or fresh or self.names() or answer.traces() or {UNKNOWN}

    def _remember(self, names: Iterable[str]) -> None:
        now = self._clock()
        self._seen = {name: at for name, at in self._seen.items() if now - at < _FORGOTTEN_AFTER_S}
        self._seen.update(dict.fromkeys(names, now))
        if len(self._seen) > 1:
            self._seen.pop(UNKNOWN, None)

    def _pause(self) -> None:
        self._not_before = self._clock() + self._uniform(PAUSE_S, 1.2 * PAUSE_S)
