"""The rules around a write, before anything is stored: metadata, generation, what a subresource may touch, validation.

kube-apiserver has these rules in rest.BeforeCreate, rest.BeforeUpdate and a strategy for each kind. Here they are two
pure functions of whole objects; the flags of their `Resource` distinguish the kinds. Names, labels and values are not
validated.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Final

from sandbox.apiserver import pods, resources
from sandbox.apiserver.errors import Json, bad_request, cause, conflict, invalid
from sandbox.apiserver.resources import Resource

# Of all annotations of an object together, keys and values.
_ANNOTATIONS_LIMIT: Final = 256 * 1024
_SERVER_FIELDS: Final = (
    "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
    "selfLink",
)  # fmt: skip
_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True)
class Site:
    """The target of a write: a resource in a version, a namespace, optionally a name and a subresource."""

    resource: Resource
    version: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def api_version(self) -> str:
        return self.resource.api_version(self.version)

    @property
    def key(self) -> tuple[str, str]:
        return (self.namespace, self.name)

    @property
    def storage_key(self) -> str:
        """Where etcd has the object, as messages show it."""
        steps = (self.resource.group if self.resource.is_custom else "", self.resource.plural, *self.key)
        return "/".join(["/registry", *(step for step in steps if step)])

    @property
    def is_preferred(self) -> bool:
        """Whether the version is the storage version."""
        return self.version == self.resource.versions[0].name

    def named(self, name: str) -> Site:
        return replace(self, name=name)


def check_identity(site: Site, obj: Json) -> Json:
    """The object with kind, version and place as the request's path says. Raises StatusError 400 where they differ."""
    resource = site.resource
    kind, api_version = obj.get("kind"), obj.get("apiVersion")
    if resource.is_custom and not kind:
        raise bad_request("Object 'Kind' is missing in the request body")
    if kind not in (None, "", resource.kind) or api_version not in (None, "", site.api_version):
        raise bad_request(
            f"the API version in the data ({api_version}, Kind={kind}) does not match the expected API version "
            f"({site.api_version}, Kind={resource.kind})"
        )
    metadata = obj.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise bad_request("metadata must be an object")
    for name in ("labels", "annotations"):
        pairs = metadata.get(name) or {}
        if not isinstance(pairs, dict) or not all(isinstance(value, str) for value in pairs.values()):
            raise bad_request(f"cannot unmarshal metadata.{name}: expected a map of strings")
    metadata = {name: value for name, value in metadata.items() if value not in (None, {}, [])}
    if metadata.get("namespace", site.namespace) != site.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if site.name and metadata.get("name", site.name) != site.name:
        raise bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({site.name})"
        )
    place = {"name": site.name} if site.name else {}
    place |= {"namespace": site.namespace} if site.namespace else {}
    return {**obj, "kind": resource.kind, "apiVersion": site.api_version, "metadata": {**metadata, **place}}


def prepare_create(site: Site, obj: Json, now: str, uid: str) -> Json:
    """Returns a new object as it will be stored (without resourceVersion). Raises StatusError 422."""
    resource = site.resource
    metadata = {name: value for name, value in obj["metadata"].items() if name not in _SERVER_FIELDS}
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"][:58] + _suffix()
    if not metadata.get("name"):
        message = "Required value: name or generateName is required"
        raise invalid(resource.qualified_kind, "", [cause("FieldValueRequired", message, "metadata.name")])
    metadata |= {"uid": uid, "creationTimestamp": now}
    if resource.has_generation:
        metadata["generation"] = 1
    prepared = {**obj, "metadata": metadata}
    if resource.has_status and not resource.keeps_status_on_create:
        prepared.pop("status", None)
    prepared = _defaulted(site, prepared, now)
    _check_annotations(site, prepared)
    return prepared


def _suffix() -> str:
    number = uuid.uuid4().int
    letters = ""
    for _ in range(5):
        number, index = divmod(number, len(_SUFFIX_ALPHABET))
        letters += _SUFFIX_ALPHABET[index]
    return letters


def _defaulted(site: Site, obj: Json, now: str) -> Json:
    """Returns a new object with what its kind fills in."""
    match site.resource.key:
        case "pods":
            return pods.with_defaults(obj, now)
        case "namespaces":
            return {**obj, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
        case "customresourcedefinitions.apiextensions.k8s.io":
            return resources.with_defaults(obj)
    return obj


def pruned(site: Site, obj: Json) -> Json:
    """Returns a custom object without fields that its version does not know; built-in objects unchanged."""
    schema = site.resource.version(site.version).schema
    return obj if schema is None else resources.pruned(obj, schema)


def in_version(site: Site, obj: Json) -> Json:
    """Returns a stored object as the site's version shows it.

    Conversion `None` changes apiVersion and then prunes: fields the version does not know are not shown, and a client
    that writes such an object back loses them. v1alpha1 clients of NodeResourceTopology do that to `attributes`.
    """
    labelled = {**obj, "kind": site.resource.kind, "apiVersion": site.api_version}
    return labelled if site.is_preferred else pruned(site, labelled)


def _check_annotations(site: Site, obj: Json) -> None:
    pairs = (obj["metadata"].get("annotations") or {}).items()
    if sum(len(key.encode()) + len(value.encode()) for key, value in pairs) > _ANNOTATIONS_LIMIT:
        message = f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes"
        causes = [cause("FieldValueTooLong", message, "metadata.annotations")]
        raise invalid(site.resource.qualified_kind, obj["metadata"]["name"], causes)


def prepare_update(site: Site, old: Json, new: Json) -> Json:
    """Returns the next state of an object, with the old resourceVersion. Raises StatusError 409 or 422."""
    resource, new_metadata = site.resource, new["metadata"]
    _check_version(site, old, new_metadata)
    metadata = {**new_metadata, "resourceVersion": old["metadata"]["resourceVersion"]}
    if new_metadata.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
        message = f'Invalid value: "{new_metadata["uid"]}": field is immutable'
        raise invalid(
            resource.qualified_kind, old["metadata"]["name"], [cause("FieldValueInvalid", message, "metadata.uid")]
        )
    for name in (*_SERVER_FIELDS, "name", "namespace"):
        if name in old["metadata"]:
            metadata[name] = old["metadata"][name]
        else:
            metadata.pop(name, None)
    updated = _within_subresource(site, old, {**new, "metadata": metadata})
    if resource.key == "pods" and not site.subresource:
        updated = {**updated, "spec": pods.defaulted_spec(updated)}
        pods.check_update(old, updated)
    _check_annotations(site, updated)
    if resource.has_generation and _desired(resource, updated) != _desired(resource, old):
        metadata = {**updated["metadata"], "generation": old["metadata"].get("generation", 0) + 1}
        updated = {**updated, "metadata": metadata}
    return updated


def _check_version(site: Site, old: Json, metadata: Json) -> None:
    resource, name = site.resource, old["metadata"]["name"]
    version = metadata.get("resourceVersion")
    if version not in (None, "", "0"):
        if version != old["metadata"]["resourceVersion"]:
            raise conflict(resource.key, name)
    elif not resource.unconditional_update:
        # Worded with the resource where other refusals have the kind.
        message = "Invalid value: 0: must be specified for an update"
        raise invalid(resource.key, name, [cause("FieldValueInvalid", message, "metadata.resourceVersion")])


def _within_subresource(site: Site, old: Json, new: Json) -> Json:
    """Keeps the status out of plain updates and everything else out of status updates."""
    if not site.resource.has_status:
        return new
    if site.subresource == "status":
        # Of metadata, a custom resource's status update changes only managedFields; built-in kinds take labels and
        # annotations too (kubelets patch node annotations through nodes/status).
        metadata = new["metadata"]
        if site.resource.is_custom:
            metadata = {**old["metadata"], **{k: v for k, v in metadata.items() if k == "managedFields"}}
        result = {**old, "metadata": metadata}
        result.pop("status", None)
        return result | ({"status": new["status"]} if "status" in new else {})
    result = {**new}
    result.pop("status", None)
    return result | ({"status": old["status"]} if "status" in old else {})


def _desired(resource: Resource, obj: Json) -> Json:
    """What a change of counts as a new generation: everything of a custom resource but metadata and status."""
    if not resource.is_custom:
        return {"spec": obj.get("spec")}
    left_out = {"metadata", "apiVersion", "kind"} | ({"status"} if resource.has_status else set())
    return {name: value for name, value in obj.items() if name not in left_out}
