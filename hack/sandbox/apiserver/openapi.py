"""Just enough OpenAPI v3 that kubectl leaves validation to the server.

Without any, `kubectl apply` and `create` fail unless told `--validate=false`. kubectl asks the document of a kind's
group version one thing before it writes: whether PATCH takes `fieldValidation`. It does (for custom resources unknown
fields are warned about or refused), and that is all these documents say: no schemas, so `kubectl explain` fails.
"""

from __future__ import annotations

from sandbox.apiserver.errors import Json
from sandbox.apiserver.resources import Catalog, Resource


def index(catalog: Catalog) -> Json:
    """The answer to `/openapi/v3`: where each group version's document is."""
    paths = ["api/v1"] + [
        f"apis/{group}/{version}" for group in catalog.groups() for version in catalog.versions(group)
    ]
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def document(catalog: Catalog, path: str) -> Json | None:
    """The document of `api/v1` or `apis/G/V`, None if that is not served."""
    kind, _, rest = path.partition("/")
    group, _, version = rest.rpartition("/")
    if (kind == "api") is bool(group) or version not in catalog.versions(group):
        return None
    resources = [r for r in catalog if r.group == group and any(served.name == version for served in r.versions)]
    return {
        "openapi": "3.0.0",
        "info": {"title": "topowise sandbox", "version": version},
        "paths": {f"/{path}/{_place(resource)}": _operations(resource, version) for resource in resources},
    }


def _place(resource: Resource) -> str:
    scope = "namespaces/{namespace}/" if resource.namespaced else ""
    return f"{scope}{resource.plural}/{{name}}"


def _operations(resource: Resource, version: str) -> Json:
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation", "force")
    ]
    gvk = {"group": resource.group, "version": version, "kind": resource.kind}
    answers = {"200": {"description": "OK"}}
    return {"patch": {"parameters": parameters, "responses": answers, "x-kubernetes-group-version-kind": gvk}}
