"""Just enough OpenAPI v3 that kubectl leaves validation to the server, and explains custom resources.

Without a document, `kubectl apply` and `create` need `--validate=false`. Before a write, kubectl looks up in the
document of the group version whether PATCH takes `fieldValidation`. It does (for custom resources, the server warns
about unknown fields or refuses them). `kubectl explain` finds a kind by the path of its collection, and its schema by
the kind. Custom resources have the schema of their definition; built-in kinds have none here, so nothing explains them.
"""

from __future__ import annotations

from typing import Final

from sandbox.apiserver.errors import Json
from sandbox.apiserver.resources import Catalog, Resource

_TEXT: Final[Json] = {"type": "string"}
_OF_EVERY_OBJECT: Final[Json] = {
    "apiVersion": _TEXT | {"description": "The version of the schema that the object is written in."},
    "kind": _TEXT | {"description": "What the object is."},
    "metadata": {"type": "object", "description": "Standard object metadata."},
}


def index(catalog: Catalog) -> Json:
    """Returns the answer to `/openapi/v3`: where each group version's document is."""
    paths = ["api/v1"] + [
        f"apis/{group}/{version}" for group in catalog.groups() for version in catalog.versions(group)
    ]
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def document(catalog: Catalog, path: str) -> Json | None:
    """Returns the document of `api/v1` or `apis/G/V`, None if that is not served."""
    kind, _, rest = path.partition("/")
    group, _, version = rest.rpartition("/")
    if (kind == "api") is bool(group) or version not in catalog.versions(group):
        return None
    resources = [r for r in catalog if r.group == group and any(served.name == version for served in r.versions)]
    paths = {}
    for resource in resources:
        paths[f"/{path}/{_collection(resource)}"] = _listing(resource, version)
        paths[f"/{path}/{_collection(resource)}/{{name}}"] = _patching(resource, version)
    return {
        "openapi": "3.0.0",
        "info": {"title": "topowise sandbox", "version": version},
        "paths": paths,
        "components": {"schemas": dict(_schema(resource, version) for resource in resources if resource.is_custom)},
    }


def _collection(resource: Resource) -> str:
    return f"namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else resource.plural


def _schema(resource: Resource, version: str) -> tuple[str, Json]:
    schema = resource.version(version).schema or {"type": "object"}
    whole = schema | {
        "properties": (schema.get("properties") or {}) | _OF_EVERY_OBJECT,
        "x-kubernetes-group-version-kind": [_gvk(resource, version)],
    }
    return f"{'.'.join(reversed(resource.group.split('.')))}.{version}.{resource.kind}", whole


def _listing(resource: Resource, version: str) -> Json:
    return {"get": {"responses": _ANSWERS, "x-kubernetes-group-version-kind": _gvk(resource, version)}}


def _patching(resource: Resource, version: str) -> Json:
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation", "force")
    ]
    gvk = _gvk(resource, version)
    return {"patch": {"parameters": parameters, "responses": _ANSWERS, "x-kubernetes-group-version-kind": gvk}}


def _gvk(resource: Resource, version: str) -> Json:
    return {"group": resource.group, "version": version, "kind": resource.kind}


_ANSWERS: Final[Json] = {"200": {"description": "OK"}}
