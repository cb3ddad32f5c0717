"""Discovery in its old form (`/api`, `/apis`, `/api/v1`, `/apis/G/V`), which every client falls back to.

And just enough OpenAPI v3 that kubectl leaves validation to the server: without a document, `kubectl apply` and
`create` need `--validate=false`. Before a write, kubectl looks up in the document of the group version whether PATCH
takes `fieldValidation`.
"""

from __future__ import annotations

from sandbox.apiserver.errors import Json
from sandbox.apiserver.resources import VERBS, Catalog, Resource

# What the sandbox claims to be: new enough for the allocation of claims to be predicted.
VERSION: Json = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+topowise-sandbox",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}


def core_versions(address: str) -> Json:
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def groups(catalog: Catalog) -> Json:
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(catalog, name) for name in catalog.groups()],
    }


def group(catalog: Catalog, name: str) -> Json | None:
    """Returns the APIGroup, None if nothing of it is served."""
    if name not in catalog.groups():
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(catalog, name)}


def _group(catalog: Catalog, name: str) -> Json:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in catalog.versions(name)]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def resources(catalog: Catalog, group_name: str, version: str) -> Json | None:
    """Returns the APIResourceList of a version, None if it is not served."""
    if version not in catalog.versions(group_name):
        return None
    entries = [
        entry
        for resource in catalog
        if resource.group == group_name and any(served.name == version for served in resource.versions)
        for entry in _entries(resource)
    ]
    group_version = f"{group_name}/{version}" if group_name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def _entries(resource: Resource) -> list[Json]:
    main: Json = {
        "name": resource.plural,
        "singularName": resource.singular or resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(VERBS),
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    if resource.categories:
        main["categories"] = list(resource.categories)
    entries = [main]
    if resource.has_status:
        entries.append(_sub(resource, "status", resource.kind) | {"verbs": ["get", "patch", "update"]})
    for name, (api_version, kind) in resource.subresources.items():
        group_name, _, version = api_version.rpartition("/")
        named = {"group": group_name, "version": version} if group_name else {}
        entries.append(_sub(resource, name, kind) | named | {"verbs": ["create"]})
    return entries


def _sub(resource: Resource, name: str, kind: str) -> Json:
    return {
        "name": f"{resource.plural}/{name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": kind,
    }


def openapi_index(catalog: Catalog) -> Json:
    """Returns the answer to `/openapi/v3`: where each group version's document is."""
    paths = ["api/v1"] + [
        f"apis/{group}/{version}" for group in catalog.groups() for version in catalog.versions(group)
    ]
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}


def openapi(catalog: Catalog, path: str) -> Json | None:
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
