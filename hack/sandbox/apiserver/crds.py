"""CustomResourceDefinitions: from the object to the served resource.

A new CRD's kind is served at once (the real server takes a moment; clients poll for `Established` either way).
"""

from __future__ import annotations

from sandbox.apiserver.errors import Json, cause
from sandbox.apiserver.resources import Column, Resource, Version

# Printed when a version states no columns of its own.
_AGE = Column("Age", "date", ".metadata.creationTimestamp")


def causes_against(crd: Json) -> list[Json]:
    """What makes a definition unusable, as causes of a 422."""
    spec = crd.get("spec") or {}
    names = spec.get("names") or {}
    causes = [
        cause("FieldValueRequired", "Required value", f"spec.{path}")
        for path, value in (
            ("group", spec.get("group")),
            ("scope", spec.get("scope")),
            ("names.plural", names.get("plural")),
            ("names.kind", names.get("kind")),
            ("versions", spec.get("versions")),
        )
        if not value
    ]
    if causes:
        return causes
    name = crd["metadata"].get("name")
    if name != f"{names['plural']}.{spec['group']}":
        message = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        causes.append(cause("FieldValueInvalid", message, "metadata.name"))
    if sum(bool(version.get("storage")) for version in spec["versions"]) != 1:
        message = "Invalid value: must have exactly one version marked as storage version"
        causes.append(cause("FieldValueInvalid", message, "spec.versions"))
    for i, version in enumerate(spec["versions"]):
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            message = "Required value: schemas are required"
            causes.append(cause("FieldValueRequired", message, f"spec.versions[{i}].schema.openAPIV3Schema"))
    return causes


def with_defaults(crd: Json) -> Json:
    """Returns the definition with names and conversion filled in as the server does."""
    spec, names = crd["spec"], crd["spec"]["names"]
    filled = {"singular": names["kind"].lower(), "listKind": f"{names['kind']}List"} | names
    return {**crd, "spec": {"conversion": {"strategy": "None"}} | spec | {"names": filled}}


def established(crd: Json, now: str) -> Json:
    """Returns the status of a definition that is being served."""
    stored = [version["name"] for version in crd["spec"]["versions"] if version.get("storage")]
    before = (crd.get("status") or {}).get("storedVersions") or []
    conditions = (crd.get("status") or {}).get("conditions") or [
        {"type": "NamesAccepted", "status": "True", "lastTransitionTime": now, "reason": "NoConflicts",
         "message": "no conflicts found"},
        {"type": "Established", "status": "True", "lastTransitionTime": now, "reason": "InitialNamesAccepted",
         "message": "the initial names have been accepted"},
    ]  # fmt: skip
    return {
        "conditions": conditions,
        "acceptedNames": crd["spec"]["names"],
        "storedVersions": list(dict.fromkeys([*before, *stored])),
    }


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
            description=column.get("description")
            or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}",
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
