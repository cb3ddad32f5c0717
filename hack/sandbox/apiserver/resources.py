"""The served kinds: a `Resource` for each kind, and the `Catalog` that finds it by path.

A resource is described by data alone (names, scope, which subresources, how updates behave), so the built-in kinds are
a table (`BUILTIN`, with the flags of each kind's strategy in pkg/registry) and a CustomResourceDefinition is another
way to make the same description (`resource_of`).
All served versions of a resource share their storage; answers differ in `apiVersion` only, as with CRDs whose
conversion strategy is `None`.

A new kind of a CustomResourceDefinition is served at once (the real server takes a moment; clients poll for
`Established` either way). Of the schema only the names of fields are used: fields that it does not know are dropped, as
a real server drops them. Values are not validated, and no defaults are filled in; tests/nightly/cluster writes to a
real API server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandbox.apiserver.errors import Json

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`. `path` is a JSONPath; built-in kinds compute their cells instead (`printers`)."""

    name: str
    type: str = "string"
    path: str = ""
    format: str = ""
    description: str = ""
    priority: int = 0

    def definition(self) -> Json:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


@dataclass(frozen=True)
class Version:
    """A served version: the schema objects must meet and the columns to print. Built-in kinds have neither."""

    name: str
    schema: Json | None = None
    columns: tuple[Column, ...] = ()
    selectable_fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resource:
    """A kind as the API server serves it. `versions` are in order of preference."""

    group: str
    kind: str
    plural: str
    versions: tuple[Version, ...]
    namespaced: bool = False
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    is_custom: bool = False
    has_status: bool = False
    # Nodes register with their status; every other kind has it wiped on create (its strategy's PrepareForCreate).
    keeps_status_on_create: bool = False
    # Kind of the objects POSTed to each further subresource, with its group/version.
    subresources: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    has_generation: bool = False
    # AllowUnconditionalUpdate and AllowCreateOnUpdate of the kind's strategy.
    unconditional_update: bool = True
    create_on_update: bool = False
    returns_deleted: bool = False
    selectable_fields: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """`plural.group`, as error messages and CRD names have it; the plural alone for the core group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def version(self, name: str) -> Version:
        return next(version for version in self.versions if version.name == name)

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version

    @property
    def kind_of_list(self) -> str:
        return self.list_kind or f"{self.kind}List"


class Catalog:
    """Resources by key and by path."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._by_key = {resource.key: resource for resource in resources}

    def add(self, resource: Resource) -> None:
        self._by_key[resource.key] = resource

    def remove(self, key: str) -> None:
        self._by_key.pop(key, None)

    def __iter__(self) -> Iterator[Resource]:
        return iter(self._by_key.values())

    def __getitem__(self, key: str) -> Resource:
        return self._by_key[key]

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """Returns the resource if that version of it is served."""
        resource = self._by_key.get(f"{plural}.{group}" if group else plural)
        if resource is None or all(served.name != version for served in resource.versions):
            return None
        return resource

    def versions(self, group: str) -> list[str]:
        """Returns the versions of a group, the preferred version first."""
        names: dict[str, None] = {}
        for resource in self:
            if resource.group == group:
                names.update(dict.fromkeys(version.name for version in resource.versions))
        return list(names)

    def groups(self) -> list[str]:
        """Named groups, in order of registration; the core group is not among them."""
        return list(dict.fromkeys(resource.group for resource in self if resource.group))

    def is_custom_group(self, group: str) -> bool:
        return all(resource.is_custom for resource in self if resource.group == group)


_V1 = (Version("v1"),)

BUILTIN: tuple[Resource, ...] = (
    Resource(
        "", "Node", "nodes", _V1,
        short_names=("no",), has_status=True, keeps_status_on_create=True,
        selectable_fields=("spec.unschedulable",),
    ),
    Resource(
        "", "Pod", "pods", _V1,
        namespaced=True, short_names=("po",), categories=("all",), has_status=True, has_generation=True,
        subresources={"binding": ("v1", "Binding"), "eviction": ("policy/v1", "Eviction")}, returns_deleted=True,
        selectable_fields=(
            "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
            "status.phase", "status.podIP", "status.nominatedNodeName",
        ),
    ),
    Resource("", "Namespace", "namespaces", _V1, short_names=("ns",), has_status=True,
             selectable_fields=("status.phase",)),
    Resource(
        "", "Event", "events", _V1,
        namespaced=True, short_names=("ev",), create_on_update=True,
        selectable_fields=(
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
            "reason", "reportingComponent", "source", "type",
        ),
    ),
    Resource("", "ConfigMap", "configmaps", _V1, namespaced=True, short_names=("cm",)),
    Resource("", "Secret", "secrets", _V1, namespaced=True, selectable_fields=("type",)),
    Resource("", "Service", "services", _V1, namespaced=True, short_names=("svc",), categories=("all",),
             has_status=True, returns_deleted=True),
    Resource("", "ServiceAccount", "serviceaccounts", _V1, namespaced=True, short_names=("sa",), returns_deleted=True),
    *(
        Resource("apps", kind, f"{kind.lower()}s", _V1, namespaced=True, short_names=(short,), categories=("all",),
                 has_status=True, has_generation=True)
        for kind, short in (("Deployment", "deploy"), ("ReplicaSet", "rs"), ("StatefulSet", "sts"), ("DaemonSet", "ds"))
    ),
    Resource("batch", "Job", "jobs", _V1, namespaced=True, categories=("all",), has_status=True, has_generation=True),
    Resource("policy", "PodDisruptionBudget", "poddisruptionbudgets", _V1, namespaced=True, short_names=("pdb",),
             has_status=True, has_generation=True, unconditional_update=False),
    Resource("coordination.k8s.io", "Lease", "leases", _V1, namespaced=True, unconditional_update=False,
             create_on_update=True),
    Resource("resource.k8s.io", "ResourceSlice", "resourceslices", _V1, has_generation=True,
             selectable_fields=("spec.nodeName", "spec.driver")),
    Resource("resource.k8s.io", "ResourceClaim", "resourceclaims", _V1, namespaced=True, has_status=True),
    Resource("resource.k8s.io", "ResourceClaimTemplate", "resourceclaimtemplates", _V1, namespaced=True),
    Resource("resource.k8s.io", "DeviceClass", "deviceclasses", _V1, has_generation=True),
    Resource("events.k8s.io", "Event", "events", _V1, namespaced=True, short_names=("ev",), create_on_update=True,
             selectable_fields=("reason", "reportingController", "type", "regarding.name", "regarding.namespace")),
    Resource("scheduling.k8s.io", "PriorityClass", "priorityclasses", _V1, short_names=("pc",), has_generation=True),
    Resource("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", _V1,
             short_names=("crd", "crds"), has_status=True, has_generation=True, unconditional_update=False),
)  # fmt: skip


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
