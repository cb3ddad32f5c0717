"""Refusals as the API server words them: a `Status` object with code, reason and details.

Clients branch on `code` and `reason`, people read `message`, and some code out there matches message text; so all three
are from k8s.io/apimachinery/pkg/api/errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

LOCK_MESSAGE = "the object has been modified; please apply your changes to the latest version and try again"


class StatusError(Exception):
    """A refused request. `status()` is the body, `code` the HTTP status."""

    def __init__(
        self, code: int, reason: str, message: str, details: Json | None = None, *, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after = retry_after

    def status(self) -> Json:
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        retry = {} if self.retry_after is None else {"retryAfterSeconds": self.retry_after}
        if retry or self.details is not None:
            body["details"] = {**(self.details or {}), **retry}
        body["code"] = self.code
        return body


def success(code: int | None = None, details: Json | None = None) -> Json:
    """Returns the `Status` of a request that has no object to answer with."""
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        body["details"] = details
    if code is not None:
        body["code"] = code
    return body


def cause(reason: str, message: str, field: str) -> Json:
    return {"reason": reason, "message": message, "field": field}


def _details(resource: str, name: str) -> Json:
    plural, _, group = resource.partition(".")
    return {"name": name} | ({"group": group} if group else {}) | {"kind": plural}


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def not_found(resource: str, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{resource} "{name}" not found', _details(resource, name))


def no_such_route() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def method_not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, {})


def already_exists(resource: str, name: str) -> StatusError:
    return StatusError(409, "AlreadyExists", f'{resource} "{name}" already exists', _details(resource, name))


def conflict(resource: str, name: str, why: str = LOCK_MESSAGE) -> StatusError:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(resource, name))


def precondition_failed(resource: str, name: str, key: str, word: str, expected: str, actual: str) -> StatusError:
    """409 of a write that is meant for another object or state, in the words of the storage. `key` is etcd's."""
    why = f"Precondition failed: {word} in precondition: {expected}, {word} in object meta: {actual}"
    storage = f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
    return conflict(resource, name, storage + why)


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return StatusError(415, "UnsupportedMediaType", message)


def invalid(kind: str, name: str, causes: Sequence[Json]) -> StatusError:
    """422 for an object that breaks rules. `kind` is `Kind.group`, or `Kind` alone for the core group."""
    bare, _, group = kind.partition(".")
    details: Json = {"name": name} | ({"group": group} if group else {}) | {"kind": bare, "causes": list(causes)}
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {_joined(causes)}', details)


def _joined(causes: Sequence[Json]) -> str:
    lines = [f"{c['field']}: {c['message']}" for c in causes]
    return lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"


def too_large_resource_version(requested: int, current: int) -> StatusError:
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
    details = {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}
    return StatusError(504, "Timeout", message, details, retry_after=1)
