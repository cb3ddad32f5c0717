"""Requests of the controllers for objects that other clients change and delete too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from topowise.errors import ApiError
from topowise.kube.api import MERGE_PATCH, Api
from topowise_scheduler.controllers import controller

Decoded = TypeVar("Decoded")
Decode = Callable[[bytes], Decoded]


async def read(api: Api, path: str, decode: Decode[Decoded], query: Mapping[str, str] | None = None) -> Decoded:
    """Returns an object or a list. Raises ApiError."""
    raw = await api.request("GET", path, query=query, timeout=controller.REQUEST_TIMEOUT_S)
    return _decoded(raw, decode, f"GET {path}")


async def create(api: Api, path: str, document: Mapping[str, Any], decode: Decode[Decoded]) -> Decoded:
    """Returns the created object. Raises ApiError."""
    body = msgspec.json.encode(document)
    raw = await api.request("POST", path, body=body, timeout=controller.REQUEST_TIMEOUT_S)
    return _decoded(raw, decode, f"POST {path}")


async def patch(api: Api, path: str, change: Mapping[str, Any]) -> bool:
    """Merges a change into an object. Returns False if the object is gone or was changed: the watch brings it as it is
    now. Raises ApiError."""
    body = msgspec.json.encode(change)
    try:
        await api.request("PATCH", path, body=body, content_type=MERGE_PATCH, timeout=controller.REQUEST_TIMEOUT_S)
    except ApiError as exc:
        if exc.status not in (404, 409):
            raise
        return False
    return True


async def delete(api: Api, path: str, uid: str) -> None:
    """Deletes an object, if it still exists with this UID. Raises ApiError."""
    body = msgspec.json.encode({"preconditions": {"uid": uid}})
    try:
        await api.request("DELETE", path, body=body, timeout=controller.REQUEST_TIMEOUT_S)
    except ApiError as exc:
        if exc.status not in (404, 409):
            raise


def _decoded(raw: bytes, decode: Decode[Decoded], request: str) -> Decoded:
    try:
        return decode(raw)
    except msgspec.DecodeError as exc:
        raise ApiError(0, "Decode", str(exc), request=request) from exc
