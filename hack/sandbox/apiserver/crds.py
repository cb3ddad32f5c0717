"""CustomResourceDefinitions: from the object to the served resource, and the fields that its schema knows.

A new kind is served at once (the real server takes a moment; clients poll for `Established` either way). Of the schema
only the names of fields are used: fields that it does not know are dropped, as a real server drops them. Values are not
validated, and no defaults are filled in; tests/nightly/cluster writes to a real API server.
"""

from __future__ import annotations

from typing import Any, Final

from sandbox.apiserver.errors import Json
from sandbox.apiserver.resources import Column, Resource, Version

# Printed when a version states no columns of its own.
_AGE: Final = Column("Age", "date", ".metadata.creationTimestamp")
_OBJECT_META: Final[Json] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def with_defaults(crd: Json) -> Json:
    """Returns the definition with the names and the status that the server fills in."""
    spec, names = crd["spec"], crd["spec"]["names"]
    names = {"singular": names["kind"].lower(), "listKind": f"{names['kind']}List"} | names
    status = {
        "conditions": [{"type": "Established", "status": "True", "reason": "InitialNamesAccepted"}],
        "acceptedNames": names,
        "storedVersions": [version["name"] for version in spec["versions"] if version.get("storage")],
    }
    return {**crd, "spec": {"conversion": {"strategy": "None"}} | spec | {"names": names}, "status": status}


def resource_of(crd: Json) -> Resource:
    """Returns the resource a definition describes."""
    spec, names = crd["spec"], crd["spec"]["names"]
    served = [version for version in spec["versions"] if version.get("served")]
    # The stored version is what kubectl should prefer. (A real server orders by version priority: v1 before v1beta1
    # before v1alpha2 before v1alpha1, which comes to the same for CRDs that store their newest version.)
    served.sort(key=lambda version: not version.get("storage"))
    return Resource(
        group=spec["group"],
        kind=names["kind"],
        plural=names["plural"],
        versions=tuple(_version(version) for version in served),
        namespaced=spec["scope"] == "Namespaced",
        singular=names["singular"],
        list_kind=names["listKind"],
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        is_custom=True,
        has_status=any("status" in (version.get("subresources") or {}) for version in served),
        has_generation=True,
        unconditional_update=False,
    )


def _version(version: Json) -> Version:
    columns = tuple(
        Column(
            name=column["name"],
            type=column["type"],
            path=column["jsonPath"],
            format=column.get("format", ""),
            description=column.get("description", ""),
            priority=column.get("priority", 0),
        )
        for column in version.get("additionalPrinterColumns") or ()
    )
    return Version(
        name=version["name"],
        schema=version["schema"]["openAPIV3Schema"],
        columns=columns or (_AGE,),
        selectable_fields=tuple(field["jsonPath"].lstrip(".") for field in version.get("selectableFields") or ()),
    )


def pruned(value: Json, schema: Json) -> Json:
    """Returns the object without fields that the schema does not know."""
    properties = {"apiVersion": {}, "kind": {}, **(schema.get("properties") or {}), "metadata": _OBJECT_META}
    known: Json = _pruned(value, {**schema, "properties": properties})
    return known


def _pruned(value: Any, schema: Json) -> Any:
    if isinstance(value, list):
        return [_pruned(item, schema["items"]) for item in value] if "items" in schema else value
    if not isinstance(value, dict):
        return value
    properties: Json = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    if schema.get("x-kubernetes-preserve-unknown-fields") is True or extra is True:
        extra = {"x-kubernetes-preserve-unknown-fields": True}
    return {
        name: _pruned(inner, properties.get(name) or extra or {})
        for name, inner in value.items()
        if name in properties or isinstance(extra, dict)
    }
