"""The contract of steering between topowise-scheduler and the marker plug-in on a node.

The scheduler writes a request into the node's Lease, the plug-in writes its status into the same Lease. A request names
a NUMA node. The plug-in labels all its marker devices with this NUMA node, and reports `labelled` once the kubelet's
podresources show the label. The label is removed when the requested number of containers has a marker, when the request
ends after its seconds, and when the scheduler withdraws the request. The plug-in then reports `released`.
docs/adr/0011-steering.md has the decision and the faults.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec

from topowise import documents
from topowise.errors import ParseError

RESOURCE: Final = "topowise.io/numa"
"""The extended resource: a marker per container."""
LEASE_PREFIX: Final = "topowise-steering-"
REQUEST: Final = "topowise.io/steering-request"
STATUS: Final = "topowise.io/steering-status"

MOST_SECONDS: Final = 30.0
MOST_CONTAINERS: Final = 256
ALLOCATED: Final = "the kubelet has allocated all markers of the pod"
"""The reason of `released` if the label has served its pod; any other reason means that it may not have."""
_MOST_TEXT: Final = 512


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`id` is unique among all requests of all schedulers. `containers` counts the containers of the pod with a marker,
    init containers included. `seconds` begin when the plug-in receives the request: clocks need not agree."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    numa: Annotated[int, msgspec.Meta(ge=0, le=63)]
    containers: Annotated[int, msgspec.Meta(ge=1, le=MOST_CONTAINERS)]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS)]


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """`id` is the request's. `labelled`: the kubelet has the label. `released`: the kubelet has no label any more, or
    it is not connected. `rejected`: the label was never set."""

    id: str
    state: Literal["labelled", "released", "rejected"]
    reason: str = ""


Document = TypeVar("Document", Request, Status)


def lease_name(node: str) -> str:
    """Returns the name of a node's Lease, in the namespace of the release."""
    return LEASE_PREFIX + node


def encode(document: Request | Status) -> str:
    """Returns the text of an annotation."""
    return msgspec.json.encode(document).decode()


def decode_request(text: str) -> Request:
    """Returns the request of an annotation. Raises ParseError."""
    return _decode(text, Request)


def decode_status(text: str) -> Status:
    """Returns the status of an annotation. Raises ParseError."""
    return _decode(text, Status)


def _decode(text: str, kind: type[Document]) -> Document:
    what, expected = f"a steering {kind.__name__.lower()}", f"JSON of at most {_MOST_TEXT} characters"
    if len(text) > _MOST_TEXT:
        raise ParseError(what, text, expected)
    try:
        return msgspec.json.decode(text, type=kind)
    except documents.UNREADABLE as exc:
        raise ParseError(what, text, f"{expected}; {exc}") from exc
