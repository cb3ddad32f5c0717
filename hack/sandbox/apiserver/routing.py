"""From a path and a method to what is asked: a site, a verb, and how the answer should look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from sandbox.apiserver.errors import StatusError, method_not_allowed, no_such_route, not_found
from sandbox.apiserver.resources import Catalog, Resource
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
