"""Deleting, and what goes with it: finalizers, owned objects, a namespace's contents, a definition's kind.

Garbage collection is a controller in a real cluster and takes its time; here it is part of the delete, so a test sees
one state. An object goes when an owner is deleted and none of its owners exists any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

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

    def delete(self, site: Site, asked: Json, *, dry_run: bool = False) -> tuple[Revision, bool]:
        """The last state and whether the object is gone (finalizers keep it). `asked` is the DeleteOptions."""
        revision = self._store.get(site.resource, site.key)
        if revision is None:
            raise not_found(site.resource.key, site.name)
        wanted = asked.get("preconditions") or {}
        for field, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            held = revision.metadata[field]
            if wanted.get(field) and wanted[field] != held:
                why = f"Precondition failed: {word} in precondition: {wanted[field]}, {word} in object meta: {held}"
                raise conflict(site.resource.key, site.name, why)
        if dry_run or "All" in (asked.get("dryRun") or ()):
            return revision, True
        if revision.metadata.get("finalizers"):
            if revision.metadata.get("deletionTimestamp"):
                return revision, False
            metadata = {**revision.metadata, "deletionTimestamp": self._now(), "deletionGracePeriodSeconds": 0}
            return self._store.put(site.resource, {**revision.object, "metadata": metadata}), False
        orphan = asked.get("propagationPolicy") == "Orphan" or asked.get("orphanDependents") is True
        return self.remove(site.resource, revision, collect=not orphan), True

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
                    self.delete(Site(resource, resource.versions[0].name, *revision.key), {})

    def _undefine(self, crd: Json) -> None:
        key = crd["metadata"]["name"]
        resource = self._catalog[key]
        for held in list(self._store.collection(key).ordered()):
            self._store.remove(resource, held.key)
        self._catalog.remove(key)
        self._store.drop_collection(key)
