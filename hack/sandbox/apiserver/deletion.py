"""Deletion and its consequences: grace, finalizers, owned objects, a namespace's contents, a definition's kind.

The deletion of a pod on a node only marks the pod: its kubelet deletes it finally, with a grace period of 0, when its
containers have ended. Until then the pod exists and uses its resources. Nothing here does that for the kubelet.

Garbage collection is a controller in a real cluster and takes time; here it is part of the delete, so a test sees a
single state. An object is deleted when an owner is deleted and none of its owners exists any more.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Final

from sandbox.apiserver import pods
from sandbox.apiserver.errors import Json, conflict, not_found
from sandbox.apiserver.resources import Catalog, Resource
from sandbox.apiserver.store import Revision, Store
from sandbox.apiserver.strategy import Site

CRDS: Final = "customresourcedefinitions.apiextensions.k8s.io"


class Remover:
    """Deletes objects of any kind."""

    def __init__(self, catalog: Catalog, store: Store, now: Callable[[], str]) -> None:
        self._catalog = catalog
        self._store = store
        self._now = now

    def delete(self, site: Site, options: Json, *, dry_run: bool = False) -> tuple[Revision, bool]:
        """The last state and whether the object is gone (grace and finalizers keep it). `asked`: the DeleteOptions."""
        revision = self._store.get(site.resource, site.key)
        if revision is None:
            raise not_found(site.resource.key, site.name)
        preconditions = options.get("preconditions") or {}
        for field, word, fate in (
            ("uid", "UID", "deleted and then recreated"),
            ("resourceVersion", "ResourceVersion", "modified"),
        ):
            current = revision.metadata[field]
            if preconditions.get(field) and preconditions[field] != current:
                expected = preconditions[field]
                differs = f"the {word} in the precondition ({expected}) does not match the {word} in record ({current})"
                why = f"{differs}. The object might have been {fate}"
                raise conflict(site.resource.qualified_kind, site.name, why)
        if dry_run or "All" in (options.get("dryRun") or ()):
            return revision, True
        if site.resource.key == "pods":
            revision = self._terminating(site.resource, revision, options)
            if revision.metadata["deletionGracePeriodSeconds"] or revision.metadata.get("finalizers"):
                return revision, False
        elif revision.metadata.get("finalizers"):
            if revision.metadata.get("deletionTimestamp"):
                return revision, False
            metadata = {**revision.metadata, "deletionTimestamp": self._now(), "deletionGracePeriodSeconds": 0}
            return self._store.put(site.resource, {**revision.object, "metadata": metadata}), False
        orphan = options.get("propagationPolicy") == "Orphan" or options.get("orphanDependents") is True
        return self.remove(site.resource, revision, collect=not orphan), True

    def _terminating(self, resource: Resource, revision: Revision, options: Json) -> Revision:
        """Returns the pod marked as being deleted. A second delete can only shorten the time that is left to it."""
        metadata = revision.metadata
        seconds = pods.grace_seconds(revision.object, options.get("gracePeriodSeconds"))
        if metadata.get("deletionTimestamp"):
            if seconds >= metadata["deletionGracePeriodSeconds"]:
                return revision
        else:
            metadata = {**metadata, "generation": metadata.get("generation", 0) + 1}
        end = datetime.datetime.fromisoformat(self._now()) + datetime.timedelta(seconds=seconds)
        marks = {"deletionTimestamp": end.strftime("%Y-%m-%dT%H:%M:%SZ"), "deletionGracePeriodSeconds": seconds}
        return self._store.put(resource, {**revision.object, "metadata": {**metadata, **marks}})

    def remove(self, resource: Resource, revision: Revision, *, collect: bool = True) -> Revision:
        """Takes the object away now, and what depends on it. The answer is its last state."""
        last = self._store.remove(resource, revision.key)
        if resource.key == CRDS:
            self._undefine(last.object)
        if resource.key == "namespaces":
            self._empty(last.metadata["name"])
        for resource_key, (namespace, name) in self._store.orphans_of(last.metadata["uid"]) if collect else ():
            owned = self._catalog[resource_key]
            if self._store.get(owned, (namespace, name)) is not None:
                self.delete(Site(owned, owned.versions[0].name, namespace, name), {})
        return last

    def _empty(self, namespace: str) -> None:
        for resource in [resource for resource in self._catalog if resource.namespaced]:
            for revision in list(self._store.collection(resource.key).ordered()):
                if revision.key[0] == namespace and self._store.get(resource, revision.key) is not None:
                    # A real namespace exists until its contents are gone; this server removes it at once.
                    self.delete(Site(resource, resource.versions[0].name, *revision.key), {"gracePeriodSeconds": 0})

    def _undefine(self, crd: Json) -> None:
        key = crd["metadata"]["name"]
        resource = self._catalog[key]
        for revision in list(self._store.collection(key).ordered()):
            self._store.remove(resource, revision.key)
        self._catalog.remove(key)
        self._store.drop_collection(key)
