"""The served kinds: a `Resource` for each kind, and the `Catalog` that finds it by path.

A resource is described by data alone (names, scope, which subresources, how updates behave), so the built-in kinds are
a table (`builtin`) and a CustomResourceDefinition is another way to make the same description (`crds`).
All served versions of a resource share their storage; answers differ in `apiVersion` only, as with CRDs whose
conversion strategy is `None`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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

    def __init__(self) -> None:
        self._by_key: dict[str, Resource] = {}

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
