"""Objects, their revisions and recent events, without HTTP.

etcd gives the API server three properties: a growing revision number across all kinds, a bounded history of events,
and lists that stay consistent over pages. Here the history is a bounded window of events for each resource, as in
kube-apiserver's watch cache: a watch that resumes from before the window gets 410, and clients must handle it. A watch
has a position in the window instead of a queue, so slow watchers cost nothing; a watch that falls out of the window is
ended, as in the real server.

Stored objects are never changed in place: a revision's dict is shared by lists, events and snapshots.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from sandbox.apiserver.errors import Json, expired
from sandbox.apiserver.resources import Resource

EventType = Literal["ADDED", "MODIFIED", "DELETED"]
Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-scoped object is empty."""

_SNAPSHOTS: Final = 32
_encode = msgspec.json.Encoder().encode


class Revision:
    """A state of an object. Its JSON is made at most once, whatever version is requested."""

    __slots__ = ("_tail", "kind", "number", "object")

    def __init__(self, kind: str, number: int, obj: Json) -> None:
        self.kind = kind
        self.number = number
        self.object = obj
        self._tail: bytes | None = None

    @property
    def metadata(self) -> Json:
        metadata: Json = self.object["metadata"]
        return metadata

    @property
    def key(self) -> Key:
        return (self.metadata.get("namespace", ""), self.metadata["name"])

    def tail(self) -> bytes:
        """Returns the JSON of everything but kind and apiVersion, with its opening brace."""
        if self._tail is None:
            self._tail = _encode({k: v for k, v in self.object.items() if k not in ("kind", "apiVersion")})
        return self._tail

    def body(self, api_version: str) -> bytes:
        return b'{"kind":"%b","apiVersion":"%b",%b' % (self.kind.encode(), api_version.encode(), self.tail()[1:])


class Event(NamedTuple):
    """A change. `revision` is the state after it (of a deletion: the last, renumbered), `before` the previous state."""

    type: EventType
    number: int
    revision: Revision
    before: Revision | None


class Collection:
    """The objects of a resource and the window of its events."""

    def __init__(self, window: int) -> None:
        self.objects: dict[Key, Revision] = {}
        self.events: deque[Event] = deque(maxlen=window)
        # Number of the newest event no longer in the window: resuming from before it is not possible.
        self.floor = 0
        self.appended = 0
        # In the order in which they were opened.
        self.watches: dict[Watch, None] = {}
        self._sorted: list[Revision] | None = None

    def append(self, event: Event) -> None:
        if len(self.events) == self.events.maxlen and self.events:
            self.floor = self.events[0].number
        self.events.append(event)
        self.appended += 1
        self._sorted = None
        for watch in self.watches:
            watch.wake()

    def ordered(self) -> list[Revision]:
        """Returns all objects by namespace and name; not to be changed by the caller."""
        if self._sorted is None:
            self._sorted = [self.objects[key] for key in sorted(self.objects)]
        return self._sorted

    def forget_events(self, current: int) -> None:
        self.events.clear()
        self.floor = current


class Watch:
    """A position in a collection's window. Iterate with `take()` and `wait()`; `close()` ends it."""

    def __init__(self, collection: Collection, position: int) -> None:
        self._collection = collection
        self._position = position
        self._changed = asyncio.Event()
        self.closed = False
        collection.watches[self] = None

    def take(self) -> list[Event]:
        """Events since the last call. Closes the watch instead when some of them are gone from the window."""
        events = self._collection.events
        missing = self._collection.appended - self._position
        if missing > len(events):
            self.close()
            return []
        self._position = self._collection.appended
        self._changed.clear()
        return [events[i] for i in range(len(events) - missing, len(events))] if missing else []

    async def wait(self) -> None:
        """Returns when there may be something to take, or when closed."""
        await self._changed.wait()

    def wake(self) -> None:
        self._changed.set()

    def close(self) -> None:
        self.closed = True
        self._collection.watches.pop(self, None)
        self._changed.set()


class Store:
    """All collections under a single revision counter. `window` bounds the events kept for each resource."""

    def __init__(self, window: int = 4096) -> None:
        self.number = 1
        self._window = window
        self._collections: dict[str, Collection] = {}
        self._snapshots: OrderedDict[tuple[str, int], list[Revision]] = OrderedDict()
        self._dependents: dict[str, set[tuple[str, Key]]] = {}
        self._uids: set[str] = set()

    def collection(self, resource_key: str) -> Collection:
        if resource_key not in self._collections:
            self._collections[resource_key] = Collection(self._window)
        return self._collections[resource_key]

    def get(self, resource: Resource, key: Key) -> Revision | None:
        return self.collection(resource.key).objects.get(key)

    def objects(self, resource_key: str) -> Iterator[Json]:
        """Yields the objects of a resource, in order; for tests and for rules that look at other kinds."""
        return (revision.object for revision in self.collection(resource_key).ordered())

    def put(self, resource: Resource, obj: Json) -> Revision:
        """Stores a new state under the next revision number and tells the watches."""
        self.number += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.number)}
        revision = Revision(resource.kind, self.number, {**obj, "metadata": metadata})
        collection = self.collection(resource.key)
        before = collection.objects.get(revision.key)
        collection.objects[revision.key] = revision
        self._index(resource.key, before, revision)
        collection.append(Event("MODIFIED" if before else "ADDED", self.number, revision, before))
        return revision

    def remove(self, resource: Resource, key: Key) -> Revision:
        """Deletes an object that exists; the answer is its last state, numbered by the deletion."""
        self.number += 1
        collection = self.collection(resource.key)
        before = collection.objects.pop(key)
        metadata = {**before.metadata, "resourceVersion": str(self.number)}
        last = Revision(resource.kind, self.number, {**before.object, "metadata": metadata})
        self._index(resource.key, before, None)
        collection.append(Event("DELETED", self.number, last, before))
        return last

    def drop_collection(self, resource_key: str) -> None:
        """Forgets an emptied resource and ends the watches on it."""
        collection = self._collections.pop(resource_key, None)
        for watch in list(collection.watches) if collection else ():
            watch.close()

    def watch(self, resource_key: str, since: int) -> Watch:
        """A watch of the events after revision `since`. Raises StatusError 410 when the window has moved past it."""
        collection = self.collection(resource_key)
        if since < collection.floor:
            raise expired(f"too old resource version: {since} ({collection.floor})")
        newer = 0
        for event in reversed(collection.events):
            if event.number <= since:
                break
            newer += 1
        watch = Watch(collection, collection.appended - newer)
        if newer:
            watch.wake()
        return watch

    def watches(self) -> list[Watch]:
        return [watch for collection in self._collections.values() for watch in collection.watches]

    def expire(self, resource_key: str | None = None) -> None:
        """Expires the window of a resource, or of all: older watches and continue tokens get 410."""
        # A revision of its own, so that a version that was current a moment ago is now too old.
        self.number += 1
        chosen = list(self._collections) if resource_key is None else [resource_key]
        for key in chosen:
            self.collection(key).forget_events(self.number)
        self._snapshots.clear()

    def snapshot(self, resource_key: str) -> tuple[int, list[Revision]]:
        """Returns the current revision number and the objects of that moment, kept for later pages (the newest few)."""
        taken = (resource_key, self.number)
        if taken not in self._snapshots:
            self._snapshots[taken] = self.collection(resource_key).ordered()
            if len(self._snapshots) > _SNAPSHOTS:
                self._snapshots.popitem(last=False)
        return self.number, self._snapshots[taken]

    def snapshot_at(self, resource_key: str, number: int) -> list[Revision] | None:
        if number == self.number:
            return self.collection(resource_key).ordered()
        return self._snapshots.get((resource_key, number))

    def orphans_of(self, uid: str) -> list[tuple[str, Key]]:
        """Objects owned by that uid of which no owner exists any more."""
        orphans = []
        for resource_key, key in sorted(self._dependents.get(uid, ())):
            revision = self.collection(resource_key).objects[key]
            if not any(owner in self._uids for owner in _owner_uids(revision)):
                orphans.append((resource_key, key))
        return orphans

    def _index(self, resource_key: str, before: Revision | None, after: Revision | None) -> None:
        if before is not None:
            self._uids.discard(before.metadata["uid"])
            for uid in _owner_uids(before):
                self._dependents[uid].discard((resource_key, before.key))
                if not self._dependents[uid]:
                    del self._dependents[uid]
        if after is not None:
            self._uids.add(after.metadata["uid"])
            for uid in _owner_uids(after):
                self._dependents.setdefault(uid, set()).add((resource_key, after.key))


def _owner_uids(revision: Revision) -> Iterable[str]:
    owners: list[dict[str, Any]] = revision.metadata.get("ownerReferences") or []
    return {owner["uid"] for owner in owners}
