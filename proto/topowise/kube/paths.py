"""Paths of the API server with names in them.

A name may come from a request, a command line or another object, so it is quoted, and what is no name of Kubernetes
becomes the name of nothing instead of a query. Where quoting does not help we send nothing, like client-go
(IsValidPathSegmentName): the API server decodes a path before it takes it apart, so that "a%2Fstatus" is a subresource
there, and "." and ".." lead elsewhere in every proxy.
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
    """The collection's path with these parts behind it. Raises ApiError 400, which is what the server would say."""
    for name in names:
        if name in _NO_NAMES or _NEVER_IN_NAMES.intersection(name):
            raise ApiError(400, "BadRequest", f"{name!r} is in the place of a name", request=f"path {collection}")
    return "/".join((collection, *(quote(name, safe=":") for name in names)))


def pod(namespace: str, name: str, *below: str) -> str:
    """The path of a pod, or of something below it such as its "binding". Raises ApiError."""
    return path(NAMESPACES, namespace, "pods", name, *below)
