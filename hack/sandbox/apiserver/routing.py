"""From a path and a method to what is asked: a site, a verb, and how the answer should look; and discovery.

Discovery is served in its old form (`/api`, `/apis`, `/api/v1`, `/apis/G/V`), which every client falls back to, with
just enough OpenAPI v3 that kubectl leaves validation to the server: without a document, `kubectl apply` and `create`
need `--validate=false`. Before a write, kubectl looks up in the document of the group version whether PATCH takes
`fieldValidation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from sandbox.apiserver.errors import Json, StatusError, method_not_allowed, no_such_route, not_found
from sandbox.apiserver.resources import VERBS, Catalog, Resource
from sandbox.apiserver.strategy import Site

Form = Literal["object", "table", "partial"]

_COLLECTION_VERBS: Final = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS: Final = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_STATUS_VERBS: Final = {"GET": "get", "PUT": "update", "PATCH": "patch"}
_CREATE_ONLY: Final = {"POST": "create"}


class Target(NamedTuple):
    """What a request is about. `group` None: no resource path at all. `site` None: no such resource."""

    group: str | None
    version: str
    rest: tuple[str, ...]
    site: Site | None


class NoSuchGroupError(Exception):
    """A path of no API group: the real server answers with plain text here, not with a Status."""


def locate(catalog: Catalog, path: str) -> Target:
    """Returns the target of a path such as `/apis/G/V/namespaces/NS/PLURAL/NAME/SUBRESOURCE`."""
    steps = tuple(step for step in path.split("/") if step)
    if len(steps) >= 2 and steps[0] == "api":
        return _target(catalog, "", steps[1], steps[2:])
    if len(steps) >= 3 and steps[0] == "apis":
        return _target(catalog, steps[1], steps[2], steps[3:])
    return Target(None, "", steps, None)


def _target(catalog: Catalog, group: str, version: str, rest: tuple[str, ...]) -> Target:
    namespace, inner = "", rest
    # `namespaces/NS/status` is a subresource of the namespace, `namespaces/NS/pods` a collection inside it.
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        namespace, inner = rest[1], rest[2:]
    resource = catalog.find(group, version, inner[0]) if inner else None
    if resource is None or len(inner) > 3 or not _fits(resource, namespace, inner):
        return Target(group, version, rest, None)
    name, subresource = (*inner[1:], "", "")[:2]
    return Target(group, version, rest, Site(resource, version, namespace, name, subresource))


def _fits(resource: Resource, namespace: str, inner: tuple[str, ...]) -> bool:
    if not resource.namespaced:
        return not namespace
    return bool(namespace) or len(inner) == 1


def missing(catalog: Catalog, target: Target) -> Exception:
    """How the server says that nothing is at a path: a Status within its own groups, plain text elsewhere."""
    group = target.group
    if group is None or target.version not in catalog.versions(group) or catalog.is_custom_group(group):
        return NoSuchGroupError()
    return no_such_route()


def verb_of(site: Site, method: str, query: Mapping[str, str]) -> str:
    """The API's verb. Raises StatusError 404 for an unknown subresource, 405 for a method the place does not take."""
    verbs = _verbs(site)
    verb = verbs.get(method)
    if verb is None or (verb == "create" and site.resource.namespaced and not site.namespace):
        raise method_not_allowed()
    if verb in ("list", "get") and query.get("watch", "").lower() in ("1", "true"):
        return "watch"
    return verb


def _verbs(site: Site) -> Mapping[str, str]:
    if not site.name:
        return _COLLECTION_VERBS
    if not site.subresource:
        return _OBJECT_VERBS
    if site.resource.has_status and site.subresource == "status":
        return _STATUS_VERBS
    if site.subresource in site.resource.subresources:
        return _CREATE_ONLY
    raise not_found(site.resource.key, site.name) if site.resource.is_custom else no_such_route()


def form_of(accept: str, *, is_printed: bool) -> Form:
    """The first form of the Accept header that can be given: a table if the kind is printed. Raises StatusError."""
    for media_range in accept.split(",") if accept else ("*/*",):
        media_type, _, text = media_range.strip().partition(";")
        if media_type.strip() not in ("application/json", "application/*", "*/*"):
            continue
        parameters = dict(part.strip().partition("=")[::2] for part in text.split(";") if part.strip())
        form = parameters.get("as")
        if form is None:
            return "object"
        if parameters.get("g") == "meta.k8s.io" and parameters.get("v") == "v1":
            if form == "Table" and is_printed:
                return "table"
            # Of lists alone.
            if form == "PartialObjectMetadataList":
                return "partial"
    message = "only the following media types are accepted: application/json"
    raise StatusError(406, "NotAcceptable", message)


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
