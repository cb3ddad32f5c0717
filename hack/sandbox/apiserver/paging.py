"""Lists and their pages: all pages of a list show the same state of the collection.

A page's continue token names the revision number the first page was taken at; the store keeps the objects of that
moment for the newest few such lists. A token whose moment is gone is a 410; the token of a real server, with which a
client may go on inconsistently, is left out.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from sandbox.apiserver import selectors
from sandbox.apiserver.errors import bad_request, expired, too_large_resource_version
from sandbox.apiserver.store import Key, Revision, Store
from sandbox.apiserver.strategy import Site

_STALE_TOKEN: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


@dataclass(frozen=True)
class ListOptions:
    """The query of a list. `version` is its resourceVersion: not older than it."""

    test: selectors.Predicate | None = None
    limit: int = 0
    token: str = ""
    version: int = 0


class Page(NamedTuple):
    revisions: list[Revision]
    number: int
    token: str
    remaining: int | None


def page(store: Store, site: Site, options: ListOptions) -> Page:
    """Returns a page. Raises StatusError 504 for a future version, 410 for an expired version or token.

    The real server waits three seconds for a future version before it gives up; this server does not wait.
    """
    if options.version > store.number:
        raise too_large_resource_version(options.version, store.number)
    number, revisions, after = _state(store, site.resource.key, options)
    chosen = [revision for revision in revisions if _is_chosen(revision, site, options.test, after)]
    limit = options.limit
    if not limit or len(chosen) <= limit:
        return Page(chosen, number, "", None)
    # With a selector, the API server does not count the remaining items.
    remaining = len(chosen) - limit if options.test is None else None
    return Page(chosen[:limit], number, _write_token(number, chosen[limit - 1].key), remaining)


def _state(store: Store, resource_key: str, options: ListOptions) -> tuple[int, list[Revision], Key | None]:
    """Returns the state to list: its number, its objects, and the key to go on after."""
    if options.token:
        return _continued(store, resource_key, options.token)
    if options.limit:
        return (*store.snapshot(resource_key), None)
    return store.number, store.collection(resource_key).ordered(), None


def _continued(store: Store, resource_key: str, token: str) -> tuple[int, list[Revision], Key]:
    number, after = _read_token(token)
    snapshot = store.snapshot_at(resource_key, number)
    if snapshot is None:
        raise expired(_STALE_TOKEN)
    return number, snapshot, after


def _is_chosen(revision: Revision, site: Site, test: selectors.Predicate | None, after: Key | None) -> bool:
    namespace, name = revision.key
    return (
        (not site.namespace or namespace == site.namespace)
        and (after is None or (namespace, name) > after)
        and (test is None or test(revision.object))
    )


def _write_token(number: int, after: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode({"v": number, "after": after})).decode().rstrip("=")


def _read_token(token: str) -> tuple[int, Key]:
    try:
        fields = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        return int(fields["v"]), (str(fields["after"][0]), str(fields["after"][1]))
    except (ValueError, KeyError, TypeError, IndexError) as exc:
        raise bad_request("continue key is not valid") from exc
