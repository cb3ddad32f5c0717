"""Paths of the API server that contain names.

A name may come from a request, a command line or another object, so it is quoted: an invalid name then matches no
object instead of becoming a query. Where quoting does not help, no request is sent, as in client-go
(IsValidPathSegmentName). The API server decodes a path before it splits it, so "a%2Fstatus" would be a subresource; "."
and ".." lead to other paths in every proxy.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from topowise.errors import ApiError

NAMESPACES: Final = "/api/v1/namespaces"
NODES: Final = "/api/v1/nodes"
PODS: Final = "/api/v1/pods"

_NO_NAMES: Final = ("", ".", "..")
_NEVER_IN_NAMES: Final = frozenset("/%")


def path(collection: str, *names: str) -> str:
    """Returns the collection's path with these names. Raises ApiError 400, the server's own answer to such a name."""
    for name in names:
        if name in _NO_NAMES or _NEVER_IN_NAMES.intersection(name):
            raise ApiError(400, "BadRequest", f"{name!r} is not a valid name", request=f"path {collection}")
    return "/".join((collection, *(quote(name, safe=":") for name in names)))


def pod(namespace: str, name: str, *below: str) -> str:
    """Returns the path of a pod, or of a subresource such as its "binding". Raises ApiError."""
    return path(NAMESPACES, namespace, "pods", name, *below)
