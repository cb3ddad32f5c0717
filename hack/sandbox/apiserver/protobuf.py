"""Kubernetes' protobuf, as far as Helm and `kubectl create namespace` send it.

client-go's typed clients send protobuf by default: Helm writes its releases, in Secrets, and namespaces that way. The
envelope is runtime.Unknown. Decoding skips fields that the table lacks, and returns None for a kind that it lacks.
Source: k8s.io/apimachinery/pkg/runtime/serializer/protobuf, k8s.io/api/core/v1/generated.proto.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

from sandbox.apiserver.errors import Json, bad_request

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"

_MAGIC: Final = b"k8s\x00"
_VARINT, _BYTES = 0, 2

# By message: number of the field -> its name and what it is.
_ENVELOPE: Final = {1: ("type", {1: ("apiVersion", "text"), 2: ("kind", "text")}), 2: ("raw", "bytes")}
_METADATA: Final = {
    1: ("name", "text"),
    3: ("namespace", "text"),
    5: ("uid", "text"),
    6: ("resourceVersion", "text"),
    11: ("labels", "map of text"),
    12: ("annotations", "map of text"),
}
_KINDS: Final[dict[str, dict[int, tuple[str, Any]]]] = {
    "Secret": {1: ("metadata", _METADATA), 2: ("data", "map of bytes"), 3: ("type", "text")},
    # The server sets everything else of a new object's metadata.
    "Namespace": {1: ("metadata", _METADATA)},
    "DeleteOptions": {4: ("propagationPolicy", "text")},
}


def decode(body: bytes) -> Json | None:
    """The object, None if it is of a kind that is not in the table. Raises StatusError 400 if it is no protobuf."""
    if not body.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix 6b387300")
    try:
        envelope = _message(body[len(_MAGIC) :], _ENVELOPE)
        fields = _KINDS.get(envelope["type"]["kind"])
        return None if fields is None else envelope["type"] | _message(envelope.get("raw", b""), fields)
    except (IndexError, KeyError, UnicodeDecodeError) as exc:
        raise bad_request(f"damaged protobuf message: {exc!r}") from exc


def _message(data: bytes, fields: dict[int, tuple[str, Any]]) -> Json:
    decoded: Json = {}
    for number, value in _fields(data):
        name, form = fields.get(number, ("", ""))
        match form:
            case "text" if value:
                # Go writes empty strings too.
                decoded[name] = value.decode()
            case "bytes":
                decoded[name] = value
            case "map of text" | "map of bytes":
                entry = dict(_fields(value))
                inner = entry.get(2, b"")
                text = inner.decode() if form == "map of text" else base64.b64encode(inner).decode()
                decoded.setdefault(name, {})[entry[1].decode()] = text
            case dict():
                decoded[name] = _message(value, form)
    return decoded


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values; an IndexError for what ends too early."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag & 7 == _BYTES:
            if at + value > len(data):
                raise IndexError(at)
            yield tag >> 3, data[at : at + value]
            at += value
        elif tag & 7 != _VARINT:
            raise IndexError(at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at += 1
        shift += 7
        if not data[at - 1] & 0x80:
            return value, at
