"""The HTTP front: maps requests to calls of the registry.

A single handler serves every path, since the served kinds change while the server runs. For each request, the journal
counts, the levers act, the token is checked; then follows discovery, health or a verb. The body is read before the
call of the registry, which never awaits, so every write is atomic.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from sandbox.apiserver import answers, documents, patches, routing, selectors
from sandbox.apiserver.errors import Json, StatusError, bad_request, cause, invalid, success, unsupported_media_type
from sandbox.apiserver.levers import Answer, Delay, Drop, Journal, Levers, RequestInfo
from sandbox.apiserver.registry import ListOptions, Registry, WriteOptions
from sandbox.apiserver.routing import Target
from sandbox.apiserver.store import Store
from sandbox.apiserver.strategy import Site
from sandbox.apiserver.watches import OpenStreams, Stream, WatchOptions

log = logging.getLogger(__name__)

_HEALTH: Final = frozenset({"/healthz", "/livez", "/readyz"})
# The real server picks a random time between 30 and 60 minutes.
_WATCH_SECONDS: Final = 1800.0
# The real server's limit of a request body.
MAX_BODY: Final = 3 * 1024 * 1024
_REASONS: Final = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
    413: "RequestEntityTooLarge", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable",
    504: "Timeout",
}  # fmt: skip


class Front:
    """Serves requests. `token` None: everybody is welcome."""

    def __init__(
        self,
        registry: Registry,
        levers: Levers,
        journal: Journal,
        streams: OpenStreams,
        *,
        token: str | None,
        bookmark_every: float,
    ) -> None:
        self._registry = registry
        self._levers = levers
        self._journal = journal
        self._sender = Sender(levers, journal, streams)
        self._token = token
        self._bookmark_every = bookmark_every

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handles every request."""
        target = routing.locate(self._registry.catalog, request.path)
        info = _request_info(request, target)
        self._journal.count(info)
        drop_after = False
        late = 0.0
        for action in self._levers.take(info):
            match action:
                case Delay(seconds, handled):
                    if handled:
                        late += seconds
                    else:
                        await asyncio.sleep(seconds)
                case Answer(status, retry_after):
                    return await self._sender.send(request, info, _scripted(status, retry_after))
                case Drop(handled):
                    if not handled:
                        return self._sender.drop(request, info)
                    drop_after = True
        if info.verb != "watch":
            await self._levers.until_moving(info)
        answer = await self._answer(request, target, info)
        if drop_after:
            return self._sender.drop(request, info)
        if isinstance(answer, WatchOptions):
            assert target.site is not None, "only a resource is watched"
            return await self._sender.stream(request, info, self._registry.store, target.site, answer)
        return await self._sender.send(request, info, answer, late)

    def open_watch(self, request: web.Request) -> Stream:
        """Returns the stream that a watch would be answered with. Raises StatusError."""
        target = routing.locate(self._registry.catalog, request.path)
        if target.site is None:
            raise routing.missing(self._registry.catalog, target)
        return Stream(
            self._registry.store, target.site, self._watch_options(request, target.site), _request_info(request, target)
        )

    async def _answer(self, request: web.Request, target: Target, info: RequestInfo) -> web.Response | WatchOptions:
        try:
            self._check_token(request)
            if target.site is None:
                return self._not_a_resource(request, target)
            verb = routing.verb_of(target.site, request.method, request.query)
            if verb == "watch":
                return self._watch_options(request, target.site)
            return await self._resource(request, target.site, verb)
        except StatusError as failure:
            return answers.refusal(failure)
        except routing.NoSuchGroupError:
            return answers.text("404 page not found\n", 404)
        except web.HTTPRequestEntityTooLarge:
            message = f"Request entity too large: limit is {MAX_BODY}"
            return answers.refusal(StatusError(413, "RequestEntityTooLarge", message))
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            # A body of a shape no rule foresaw: a real server has typed decoders to refuse it.
            log.exception("Cannot make sense of %s %s", request.method, request.path)
            return answers.refusal(StatusError(500, "InternalError", f"Internal error occurred: {exc!r}"))

    def _check_token(self, request: web.Request) -> None:
        if self._token is None or request.path in _HEALTH:
            return
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not secrets.compare_digest(token.encode(), self._token.encode()):
            raise StatusError(401, "Unauthorized", "Unauthorized")

    def _not_a_resource(self, request: web.Request, target: Target) -> web.Response:
        """Discovery, version, health; everything else is not there."""
        catalog = self._registry.catalog
        document: Json | None = None
        if target.group is not None:
            if target.rest:
                raise routing.missing(catalog, target)
            document = routing.resources(catalog, target.group, target.version)
        elif request.path in _HEALTH:
            return answers.text("ok")
        elif target.rest == ("version",):
            document = routing.VERSION
        elif target.rest == ("api",):
            document = routing.core_versions(request.host)
        elif target.rest == ("apis",):
            document = routing.groups(catalog)
        elif len(target.rest) == 2 and target.rest[0] == "apis":
            document = routing.group(catalog, target.rest[1])
        elif target.rest == ("openapi", "v3"):
            document = routing.openapi_index(catalog)
        elif target.rest[:2] == ("openapi", "v3"):
            document = routing.openapi(catalog, "/".join(target.rest[2:]))
        if document is None:
            raise routing.NoSuchGroupError
        return answers.json_response(document)

    async def _resource(self, request: web.Request, site: Site, verb: str) -> web.Response:
        form = _form_of(request, site)
        include = request.query.get("includeObject", "Metadata")
        match verb:
            case "get":
                return answers.of_revision(site, self._registry.get(site), form, include)
            case "list":
                page = self._registry.page(site, _list_options(site, request.query))
                return answers.of_page(site, page, form, include)
            case "delete" | "deletecollection":
                return await self._delete(request, site, verb)
            case _ if site.subresource in site.resource.subresources:
                return await self._act(request, site)
        body, media_type = await _body(request, verb)
        how = _write_options(request)
        if verb == "patch":
            if media_type == patches.APPLY and "fieldManager" not in request.query:
                why = cause("FieldValueRequired", "Required value: is required for apply patch", "fieldManager")
                raise invalid("PatchOptions.meta.k8s.io", "", [why])
            written = self._registry.patch(site, media_type, body, how)
        else:
            write = self._registry.create if verb == "create" else self._registry.update
            written = write(site, body, how)
        return answers.of_revision(site, written.revision, form, include, 201 if written.created else 200)

    async def _delete(self, request: web.Request, site: Site, verb: str) -> web.Response:
        raw, query = await request.read(), request.query
        options: Json = (documents.decode(raw) if raw else None) or {}
        for name in ("propagationPolicy", "orphanDependents"):
            if name in query:
                options.setdefault(name, query[name])
        if "gracePeriodSeconds" in query:
            options.setdefault("gracePeriodSeconds", _number(query, "gracePeriodSeconds"))
        dry_run = query.get("dryRun") == "All"
        if verb == "deletecollection":
            page = self._registry.page(site, ListOptions(_test(site, query)))
            for revision in page.revisions:
                namespace, name = revision.key
                # An owner earlier in the list may have removed this object too.
                if self._registry.store.get(site.resource, revision.key) is not None:
                    target = Site(site.resource, site.version, namespace, name)
                    self._registry.delete(target, options, dry_run=dry_run)
            return answers.of_page(site, page, "object", "Metadata")
        revision, is_gone = self._registry.delete(site, options, dry_run=dry_run)
        if site.resource.returns_deleted or not is_gone:
            return answers.json_response(answers.body_of(site, revision))
        resource = site.resource
        details: Json = {"name": site.name} | ({"group": resource.group} if resource.group else {})
        return answers.json_response(
            success(None, details | {"kind": resource.plural, "uid": revision.metadata["uid"]})
        )

    async def _act(self, request: web.Request, site: Site) -> web.Response:
        """POST to `pods/binding` or `pods/eviction`."""
        body, _ = await _body(request, "create")
        if not isinstance(body, dict):
            raise bad_request("the body of the request must be an object")
        act = self._registry.bind if site.subresource == "binding" else self._registry.evict
        act(site, body, _write_options(request))
        return answers.json_response(success(201), 201)

    def _watch_options(self, request: web.Request, site: Site) -> WatchOptions:
        query = request.query
        version = query.get("resourceVersion", "")
        initial = query.get("sendInitialEvents") == "true"
        return WatchOptions(
            since=None if version in ("", "0") else _number(query, "resourceVersion"),
            timeout=float(_number(query, "timeoutSeconds") or _WATCH_SECONDS),
            bookmarks=query.get("allowWatchBookmarks", "").lower() in ("1", "true"),
            bookmark_every=self._bookmark_every,
            initial_events=initial,
            test=_test(site, query),
            form=_form_of(request, site),
            include=query.get("includeObject", "Metadata"),
        )


def _form_of(request: web.Request, site: Site) -> routing.Form:
    return routing.form_of(request.headers.get("Accept", ""), is_printed=answers.is_printed(site.resource))


def _request_info(request: web.Request, target: Target) -> RequestInfo:
    site, verb, resource = target.site, request.method.lower(), ""
    if site is not None:
        resource = f"{site.resource.plural}/{site.subresource}" if site.subresource else site.resource.plural
        try:
            verb = routing.verb_of(site, request.method, request.query)
        except StatusError:
            resource = ""
    return RequestInfo(request.method, request.path, request.headers.get("User-Agent", ""), verb, resource)


def _scripted(status: int, retry_after: int | None) -> web.Response:
    reason = _REASONS.get(status, "")
    message = {
        429: "the server has received too many requests and has asked us to try again later",
        503: "the server is currently unable to handle the request",
    }.get(status, "the sandbox was told to answer so")
    return answers.refusal(StatusError(status, reason, message, retry_after=retry_after))


def _test(site: Site, query: Mapping[str, str]) -> selectors.Predicate | None:
    resource = site.resource
    offered = (*resource.selectable_fields, *resource.version(site.version).selectable_fields)
    return selectors.selection(query.get("labelSelector", ""), query.get("fieldSelector", ""), offered)


def _list_options(site: Site, query: Mapping[str, str]) -> ListOptions:
    return ListOptions(
        test=_test(site, query),
        limit=_number(query, "limit"),
        token=query.get("continue", ""),
        version=_number(query, "resourceVersion"),
    )


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name) or "0"
    # Python's int() takes more spellings, and other digits, than strconv.ParseInt.
    if not re.fullmatch("[0-9]{1,18}", text):
        raise bad_request(f'{name}: Invalid value: "{text}": must be a number')
    return int(text)


def _write_options(request: web.Request) -> WriteOptions:
    query = request.query
    agent = request.headers.get("User-Agent", "unknown").partition("/")[0]
    return WriteOptions(
        manager=query.get("fieldManager") or agent or "unknown",
        dry_run=query.get("dryRun") == "All",
        force=query.get("force") == "true",
    )


async def _body(request: web.Request, verb: str) -> tuple[Any, str]:
    """Returns the decoded body and its media type. Raises StatusError 400 or 415."""
    media_type = request.content_type
    if verb != "patch" and media_type not in ("application/json", "application/yaml", "application/octet-stream"):
        raise unsupported_media_type(["application/json", "application/yaml"])
    body = documents.decode(await request.read(), or_yaml=media_type in (patches.APPLY, "application/yaml"))
    if verb != "patch" and not isinstance(body, dict):
        raise bad_request("the body of the request must be an object")
    return body, media_type


class Sender:
    """Sends, and logs what was sent. `late` is in seconds."""

    def __init__(self, levers: Levers, journal: Journal, streams: OpenStreams) -> None:
        self._levers = levers
        self._journal = journal
        self._streams = streams

    def drop(self, request: web.Request, info: RequestInfo) -> web.Response:
        """Resets the connection. What is returned never gets onto the wire."""
        self._journal.note(info, request.query_string, 0)
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def send(
        self, request: web.Request, info: RequestInfo, response: web.Response, late: float = 0.0
    ) -> web.StreamResponse:
        self._journal.note(info, request.query_string, response.status)
        if late:
            await asyncio.sleep(late)
        return response

    async def stream(
        self, request: web.Request, info: RequestInfo, store: Store, site: Site, options: WatchOptions
    ) -> web.StreamResponse:
        """Serves a watch to its end. A stall holds every piece back, the end of the stream included."""
        stream = Stream(store, site, options, info)
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        self._journal.note(info, request.query_string, 200)
        self._streams.add(stream)
        pieces = stream.pieces()
        try:
            await response.prepare(request)
            async for piece in pieces:
                await self._levers.until_moving(info, lambda: stream.is_ended)
                if stream.is_ended:
                    break
                await response.write(piece)
            await self._levers.until_moving(info, lambda: stream.is_ended)
        finally:
            await pieces.aclose()
            self._streams.discard(stream)
        if stream.aborted and request.transport is not None:
            request.transport.abort()
        return response
