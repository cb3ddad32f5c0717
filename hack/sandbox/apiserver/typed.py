"""Typed decoding of the built-in kinds whose fields clients get wrong: leases, and the times of events.

Go decodes a body into a struct, so a string in place of a number, or a time in another format, is a 400 before any
other check. A MicroTime is the trap: it has exactly six digits after the point, and `datetime.isoformat()`, which the
official Python client uses, omits the digits when the microseconds are 0.
Source: k8s.io/apimachinery/pkg/apis/meta/v1/micro_time.go, pkg/apis/coordination/validation.
"""

from __future__ import annotations

import datetime
import json
import re
from typing import Any, Final

from sandbox.apiserver.errors import Json, bad_request, cause

LEASES: Final = "leases.coordination.k8s.io"

# Where, and as what: the Go struct that holds the field (as messages name it) and the types of its fields.
_LEASE_SPEC: Final = {
    "holderIdentity": "string",
    "leaseDurationSeconds": "int32",
    "acquireTime": "MicroTime",
    "renewTime": "MicroTime",
    "leaseTransitions": "int32",
    "strategy": "string",
    "preferredHolder": "string",
}
# Dropped while the feature gate CoordinatedLeaderElection is off, which it is by default.
_GATED: Final = ("strategy", "preferredHolder")
_EVENTS: Final = ("events", "events.events.k8s.io")

_MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)", re.ASCII)


def decoded(resource_key: str, message: str, obj: Json) -> tuple[Json, list[str]]:
    """Returns the object as Go would hold it, and the paths of fields it does not know. Raises StatusError 400.

    `what` is how messages name the kind: `Lease in version "v1" cannot be handled as a Lease`.
    """
    try:
        if resource_key == LEASES:
            return _lease(obj)
        if resource_key in _EVENTS and obj.get("eventTime") is not None:
            return {**obj, "eventTime": _micro_time(obj["eventTime"], "Event.eventTime")}, []
    except ValueError as exc:
        raise bad_request(f"{message}: {exc}") from exc
    return obj, []


def _lease(obj: Json) -> tuple[Json, list[str]]:
    spec = obj.get("spec") or {}
    known = {name: _field(name, value) for name, value in spec.items() if name in _LEASE_SPEC and value is not None}
    fields = {name: value for name, value in known.items() if name not in _GATED}
    return {**obj, "spec": fields}, [f"spec.{name}" for name in spec if name not in _LEASE_SPEC]


def _field(name: str, value: Any) -> Any:
    place, expected = f"LeaseSpec.spec.{name}", _LEASE_SPEC[name]
    if expected == "MicroTime":
        return _micro_time(value, place)
    python_type = int if expected == "int32" else str
    if isinstance(value, bool) or not isinstance(value, python_type):
        raise ValueError(f"json: cannot unmarshal {value!r} into Go struct field {place} of type {expected}")
    return value


def _micro_time(value: Any, place: str) -> str:
    """Returns a MicroTime in the server's format. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"json: cannot unmarshal {value!r} into Go struct field {place} of type string")
    if not _MICRO_TIME.fullmatch(value):
        raise ValueError(f'parsing time {json.dumps(value)} as "2006-01-02T15:04:05.000000Z07:00": cannot parse it')
    try:
        moment = datetime.datetime.fromisoformat(value).astimezone(datetime.UTC)
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"parsing time {json.dumps(value)}: out of range") from exc
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def lease_causes(lease: Json) -> list[Json]:
    """What is wrong with a lease, as causes of a 422."""
    spec = lease["spec"]
    causes = []
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        message = f"Invalid value: {seconds}: must be greater than 0"
        causes.append(cause("FieldValueInvalid", message, "spec.leaseDurationSeconds"))
    if transitions is not None and transitions < 0:
        message = f"Invalid value: {transitions}: must be greater than or equal to 0"
        causes.append(cause("FieldValueInvalid", message, "spec.leaseTransitions"))
    return causes
