"""HTTP answers: objects, lists, tables and Status bodies as responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

from sandbox.apiserver import strategy, tables
from sandbox.apiserver.errors import Json, StatusError
from sandbox.apiserver.paging import Page
from sandbox.apiserver.routing import Form
from sandbox.apiserver.store import Revision
from sandbox.apiserver.strategy import Site

_encode = msgspec.json.Encoder().encode


def json_response(body: Any, code: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """`body` as JSON; bytes are JSON already."""
    raw = body if isinstance(body, bytes) else _encode(body)
    return web.Response(body=raw, status=code, content_type="application/json", headers=headers)


def refusal(failure: StatusError) -> web.Response:
    headers = {} if failure.retry_after is None else {"Retry-After": str(failure.retry_after)}
    return json_response(failure.status(), failure.code, headers)


def text(body: str, code: int = 200) -> web.Response:
    return web.Response(text=body, status=code, content_type="text/plain")


def of_revision(site: Site, revision: Revision, form: Form, include: str, code: int = 200) -> web.Response:
    """Returns an object in the requested form."""
    if form == "table":
        metadata = {"resourceVersion": revision.metadata.get("resourceVersion", "")}
        return json_response(tables.table(site, [revision.object], metadata, include=include), code)
    return json_response(body_of(site, revision), code)


def body_of(site: Site, revision: Revision) -> bytes:
    """Returns the object's JSON in the site's version."""
    if site.is_preferred:
        return revision.body(site.api_version)
    return _encode(strategy.in_version(site, revision.object))


def of_page(site: Site, page: Page, form: Form, include: str) -> web.Response:
    """Returns a list, or a page of a list, in the requested form."""
    metadata: Json = {"resourceVersion": str(page.number)}
    if page.token:
        metadata["continue"] = page.token
    if page.remaining is not None:
        metadata["remainingItemCount"] = page.remaining
    if form == "table":
        objects = (revision.object for revision in page.revisions)
        return json_response(tables.table(site, objects, metadata, include=include))
    if form == "partial":
        items = [tables.partial(revision.object) for revision in page.revisions]
        return json_response(
            {"kind": "PartialObjectMetadataList", "apiVersion": tables.META_V1, "metadata": metadata, "items": items}
        )
    head = {"kind": site.resource.kind_of_list, "apiVersion": site.api_version, "metadata": metadata}
    return json_response(b'%b,"items":[%b]}' % (_encode(head)[:-1], b",".join(_items(site, page.revisions))))


def _items(site: Site, revisions: Iterable[Revision]) -> Iterable[bytes]:
    """Returns the items of a list. As in Go's typed lists, built-in kinds have neither kind nor apiVersion."""
    if not site.resource.is_custom:
        return (revision.tail() for revision in revisions)
    return (body_of(site, revision) for revision in revisions)
