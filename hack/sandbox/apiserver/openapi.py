"""Just enough OpenAPI v3 that kubectl leaves validation to the server.

Without a document, `kubectl apply` and `create` need `--validate=false`. Before a write, kubectl looks up in the
document of the group version whether PATCH takes `fieldValidation`. It does: for custom resources, the server warns
about unknown fields or refuses them.
"""

from __future__ import annotations

from sandbox.apiserver.errors import Json
from sandbox.apiserver.resources import Catalog, Resource


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
    return {
        "openapi": "3.0.0",
        "info": {"title": "topowise sandbox", "version": version},
        "paths": {f"/{path}/{resource.plural}/{{name}}": _patching(resource, version) for resource in resources},
    }


def _patching(resource: Resource, version: str) -> Json:
    parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    gvk = {"group": resource.group, "version": version, "kind": resource.kind}
    answers = {"200": {"description": "OK"}}
    return {"patch": {"parameters": [parameter], "responses": answers, "x-kubernetes-group-version-kind": gvk}}
