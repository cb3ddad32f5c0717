"""The verbs of the API over the store: create, get, list, update, patch, apply, delete, bind, evict. No HTTP here.

Every write runs the same way: identity, shape, rules, ownership, then a synchronous store step. So nothing interleaves,
and an answer has the resourceVersion of its event. A write without a change is not stored.

All pages of a list show the same state of the collection. A page's continue token names the revision number the first
page was taken at; the store keeps the objects of that moment for the newest few such lists. A token whose moment is
gone is a 410; the token of a real server, with which a client may go on inconsistently, is left out.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec

from sandbox import simulated_time
from sandbox.apiserver import ownership, patches, pods, resources, selectors, strategy
from sandbox.apiserver.deletion import CRDS, Remover
from sandbox.apiserver.errors import (
    Json,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    expired,
    not_found,
    precondition_failed,
    too_large_resource_version,
    unsupported_media_type,
)
from sandbox.apiserver.resources import Catalog
from sandbox.apiserver.store import Key, Revision, Store
from sandbox.apiserver.strategy import Site

_STALE_TOKEN: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


@dataclass(frozen=True)
class ListOptions:
    """The query of a list. `version` is its resourceVersion: not older than it."""

    test: selectors.Predicate | None = None
    limit: int = 0
    token: str = ""
    version: int = 0


class Page(NamedTuple):
    revisions: list[Revision]
    number: int
    token: str
    remaining: int | None


def page(store: Store, site: Site, options: ListOptions) -> Page:
    """Returns a page. Raises StatusError 504 for a future version, 410 for an expired version or token.

    The real server waits three seconds for a future version before it gives up; this server does not wait.
    """
    if options.version > store.number:
        raise too_large_resource_version(options.version, store.number)
    number, revisions, after = _state(store, site.resource.key, options)
    chosen = [revision for revision in revisions if _is_chosen(revision, site, options.test, after)]
    limit = options.limit
    if not limit or len(chosen) <= limit:
        return Page(chosen, number, "", None)
    # With a selector, the API server does not count the remaining items.
    remaining = len(chosen) - limit if options.test is None else None
    return Page(chosen[:limit], number, _write_token(number, chosen[limit - 1].key), remaining)


def _state(store: Store, resource_key: str, options: ListOptions) -> tuple[int, list[Revision], Key | None]:
    """Returns the state to list: its number, its objects, and the key to go on after."""
    if options.token:
        return _continued(store, resource_key, options.token)
    if options.limit:
        return (*store.snapshot(resource_key), None)
    return store.number, store.collection(resource_key).ordered(), None


def _continued(store: Store, resource_key: str, token: str) -> tuple[int, list[Revision], Key]:
    number, after = _read_token(token)
    snapshot = store.snapshot_at(resource_key, number)
    if snapshot is None:
        raise expired(_STALE_TOKEN)
    return number, snapshot, after


def _is_chosen(revision: Revision, site: Site, test: selectors.Predicate | None, after: Key | None) -> bool:
    namespace, name = revision.key
    return (
        (not site.namespace or namespace == site.namespace)
        and (after is None or (namespace, name) > after)
        and (test is None or test(revision.object))
    )


def _write_token(number: int, after: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode({"v": number, "after": after})).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, Key]:
    try:
        fields = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(fields["v"]), (str(fields["after"][0]), str(fields["after"][1]))
    except (ValueError, KeyError, TypeError, IndexError) as exc:
        raise bad_request("continue key is not valid") from exc


# The default of etcd's --max-request-bytes.
_ETCD_BYTES: Final = 1536 * 1024
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class WriteOptions:
    """The query parameters of a write."""

    manager: str = "unknown"
    dry_run: bool = False
    force: bool = False


class Written(NamedTuple):
    """A write's result: the revision (of a dry run: what it would be), and whether it is new."""

    revision: Revision
    created: bool


def utc_now() -> str:
    return simulated_time.utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")


def new_uid() -> str:
    return str(uuid.uuid4())


class Registry:
    """The API's behaviour. `now` gives timestamps as the API spells them, `new_uid` the uid of an object."""

    def __init__(
        self,
        catalog: Catalog,
        store: Store,
        now: Callable[[], str] = utc_now,
        new_uid: Callable[[], str] = new_uid,
    ) -> None:
        self.catalog = catalog
        self.store = store
        self._now = now
        self._new_uid = new_uid
        self._remover = Remover(catalog, store, now)

    # Reading

    def get(self, site: Site) -> Revision:
        revision = self.store.get(site.resource, site.key)
        if revision is None:
            raise not_found(site.resource.key, site.name)
        return revision

    def page(self, site: Site, options: ListOptions) -> Page:
        return page(self.store, site, options)

    # Writing

    def create(self, site: Site, obj: Json, options: WriteOptions) -> Written:
        obj = strategy.check_identity(site, obj)
        if obj["metadata"].get("resourceVersion"):
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        obj = self._pruned(site, obj)
        if site.resource.key == "pods":
            obj = pods.with_priority(obj, self.store.objects("priorityclasses.scheduling.k8s.io"))
        prepared = strategy.prepare_create(site, obj, self._now(), self._new_uid())
        recorded = ownership.record_update(None, prepared, self._writer(site, options))
        return self._insert(site, recorded, options)

    def update(self, site: Site, obj: Json, options: WriteOptions) -> Written:
        """PUT. Kinds that allow it are created when absent."""
        _check_named(site, obj)
        obj = strategy.check_identity(site, obj)
        revision = self.store.get(site.resource, site.key)
        expected_uid = obj["metadata"].get("uid")
        if revision is None:
            if not site.resource.create_on_update:
                raise not_found(site.resource.key, site.name)
            if expected_uid:
                raise precondition_failed(site.resource.key, site.name, site.storage_key, "UID", expected_uid, "")
            metadata = {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}
            return self.create(site.named(""), {**obj, "metadata": metadata}, options)
        old, current_uid = revision.object, revision.metadata["uid"]
        if expected_uid and expected_uid != current_uid:
            raise precondition_failed(site.resource.key, site.name, site.storage_key, "UID", expected_uid, current_uid)
        obj = self._pruned(site, obj)
        return self._replace(site, old, obj, options)

    def patch(self, site: Site, media_type: str, body: Any, options: WriteOptions) -> Written:
        """PATCH of any kind; an apply creates what is absent."""
        if media_type == patches.APPLY:
            return self._apply(site, body, options)
        old = self.get(site).object
        source = strategy.in_version(site, old)
        match media_type:
            case patches.MERGE:
                patched = patches.merge(source, _an_object(body))
            case patches.STRATEGIC if not site.resource.is_custom:
                patched = patches.strategic(source, _an_object(body))
            case _:
                accepted = [patches.MERGE, patches.APPLY]
                if not site.resource.is_custom:
                    accepted.insert(1, patches.STRATEGIC)
                raise unsupported_media_type(accepted)
        obj = strategy.check_identity(site, _an_object(patched))
        obj = self._pruned(site, obj)
        return self._replace(site, old, obj, options)

    def _apply(self, site: Site, body: Any, options: WriteOptions) -> Written:
        config = strategy.check_identity(site, _an_object(body))
        if "managedFields" in config["metadata"]:
            raise bad_request("metadata.managedFields must be nil")
        config = self._pruned(site, config)
        writer = self._writer(site, options, "Apply")
        revision = self.store.get(site.resource, site.key)
        if revision is None:
            _check_named(site, body)
            uid = config["metadata"].get("uid")
            if uid:
                why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise conflict(site.resource.key, site.name, why)
            if site.subresource:
                raise not_found(site.resource.key, site.name)
            empty: Json = {"metadata": {}}
            applied = ownership.apply(empty, config, writer, force=True)
            prepared = strategy.prepare_create(site, applied, self._now(), self._new_uid())
            return self._insert(site, prepared, options)
        old = revision.object
        applied = ownership.apply(strategy.in_version(site, old), config, writer, force=options.force)
        # An apply need not name a resourceVersion, whatever the kind asks of other updates.
        metadata = {"resourceVersion": old["metadata"]["resourceVersion"]} | applied["metadata"]
        prepared = strategy.prepare_update(site, old, {**applied, "metadata": metadata})
        return self._store(site, old, prepared, options)

    def _pruned(self, site: Site, obj: Json) -> Json:
        """Returns the object without fields that neither its version nor the stored version knows."""
        known = strategy.pruned(site, obj)
        if site.is_preferred:
            return known
        return strategy.pruned(replace(site, version=site.resource.versions[0].name), known)

    def _writer(self, site: Site, options: WriteOptions, operation: str = "Update") -> ownership.Writer:
        return ownership.Writer(options.manager, operation, site.api_version, self._now(), site.subresource)

    def _insert(self, site: Site, prepared: Json, options: WriteOptions) -> Written:
        site = site.named(prepared["metadata"]["name"])
        if self.store.get(site.resource, site.key) is not None:
            raise already_exists(site.resource.key, site.name)
        _check_size(prepared)
        if options.dry_run:
            return Written(Revision(site.resource.kind, self.store.number, prepared), True)
        revision, resource_key = self.store.put(site.resource, prepared), site.resource.key
        if resource_key == CRDS:
            self.catalog.add(resources.resource_of(revision.object))
        if resource_key == "events.events.k8s.io":
            self.store.put(self.catalog["events"], _core_event(prepared))
        return Written(revision, True)

    def _replace(self, site: Site, old: Json, new: Json, options: WriteOptions) -> Written:
        """Stores a plain write over `old`: applies the rules, then attributes the changes."""
        prepared = strategy.prepare_update(site, old, new)
        recorded = ownership.record_update(old, prepared, self._writer(site, options))
        return self._store(site, old, recorded, options)

    def _store(self, site: Site, old: Json, new: Json, options: WriteOptions) -> Written:
        resource = site.resource
        if _same_but_version(old, new):
            return Written(self.get(site), False)
        _check_size(new)
        if options.dry_run:
            return Written(Revision(resource.kind, self.store.number, new), False)
        metadata = new["metadata"]
        waits = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        if metadata.get("deletionTimestamp") and not waits:
            # Taking the last finalizer away is the delete.
            return Written(self._remover.remove(resource, self.get(site)), False)
        revision = self.store.put(resource, new)
        if resource.key == CRDS and not site.subresource:
            self.catalog.add(resources.resource_of(resources.with_defaults(revision.object)))
        return Written(revision, False)

    def delete(self, site: Site, options: Json, *, dry_run: bool = False) -> tuple[Revision, bool]:
        """The last state and whether the object is gone (finalizers keep it). `asked` is the DeleteOptions."""
        return self._remover.delete(site, options, dry_run=dry_run)

    # Subresources of pods

    def bind(self, site: Site, binding: Json, options: WriteOptions) -> None:
        pods.check_binding(binding, site.namespace, site.name)
        old = self.get(site).object
        new = pods.bound(old, binding, self._now())
        recorded = ownership.record_update(old, new, self._writer(site, options))
        if not options.dry_run:
            self.store.put(site.resource, recorded)

    def evict(self, site: Site, eviction: Json, options: WriteOptions) -> None:
        """Deletes the pod unless its disruption budget forbids it (429). The budget's status is the test's to write."""
        pod = self.get(site).object
        if pods.is_ready(pod) and not pods.is_terminal(pod):
            self._check_budgets(site, pod, dry_run=options.dry_run)
        self.delete(site, eviction.get("deleteOptions") or {}, dry_run=options.dry_run)

    def _check_budgets(self, site: Site, pod: Json, *, dry_run: bool) -> None:
        labels = pod["metadata"].get("labels") or {}
        budgets = [
            budget
            for budget in self.store.objects("poddisruptionbudgets.policy")
            if budget["metadata"]["namespace"] == site.namespace
            and selectors.from_label_selector((budget.get("spec") or {}).get("selector"))(labels)
        ]
        if len(budgets) > 1:
            message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise StatusError(500, "InternalError", message)
        for budget in budgets:
            status = budget.get("status") or {}
            allowed = status.get("disruptionsAllowed", 0)
            if allowed <= 0:
                name = budget["metadata"]["name"]
                needs, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
                text = f"The disruption budget {name} needs {needs} healthy pods and has {has} currently"
                why = {"reason": "DisruptionBudget", "message": text}
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                raise StatusError(429, "TooManyRequests", message, {"causes": [why]})
            if dry_run:
                continue
            resource = self.catalog["poddisruptionbudgets.policy"]
            self.store.put(resource, {**budget, "status": {**budget["status"], "disruptionsAllowed": allowed - 1}})


def _core_event(event: Json) -> Json:
    """Returns an event of events.k8s.io/v1 as v1 shows it, which is what `kubectl get events` reads."""
    names = {"regarding": "involvedObject", "note": "message", "reportingController": "reportingComponent"}
    core = {names.get(field, field): value for field, value in event.items()}
    return core | {"apiVersion": "v1", "source": {"component": event.get("reportingController", "")}}


def _same_but_version(old: Json, new: Json) -> bool:
    """Returns whether a write changes nothing; times in managedFields alone are nothing."""
    return _comparable(old) == _comparable(new)


def _comparable(obj: Json) -> Json:
    metadata = {
        name: [{**entry, "time": None} for entry in value] if name == "managedFields" else value
        for name, value in obj["metadata"].items()
    }
    return {**obj, "metadata": metadata, "apiVersion": None, "kind": None}


def _check_named(site: Site, body: Json) -> None:
    """A body that is to be an object of its own names it, even where the path does."""
    if not (body.get("metadata") or {}).get("name"):
        why = "was undeterminable: name must be provided"
        raise bad_request(f"the name of the object ({site.name} based on URL) {why}")


def _check_size(obj: Json) -> None:
    if len(_encode(obj)) > _ETCD_BYTES:
        # As etcd says it; the API server passes its words on.
        raise StatusError(500, "", "etcdserver: request is too large")


def _an_object(body: Any) -> Json:
    if not isinstance(body, dict):
        raise bad_request("the body of the request must be an object")
    return body
