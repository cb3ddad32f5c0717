"""Kubernetes' protobuf, as far as Helm, `kubectl create namespace` and `kubectl drain` send it.

client-go's typed clients send protobuf by default: Helm writes its releases, in Secrets, and namespaces that way. The
envelope is runtime.Unknown. Decoding skips fields that the table lacks,
and returns None for a kind that it lacks.
Source: k8s.io/apimachinery/pkg/runtime/serializer/protobuf, generated.proto of k8s.io/api and k8s.io/apimachinery.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

from sandbox.apiserver.errors import Json, bad_request

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"

_MAGIC: Final = b"k8s\x00"
_VARINT, _BYTES = 0, 2

Fields = dict[int, tuple[str, Any]]
"""Of a message: number of a field -> its name, and its form: a word, a message, or a list with the form of an item."""


def _fields_of(form: Any, **numbers: int) -> Fields:
    """Returns fields of the same form, for a table of names and numbers."""
    return {number: (name, form) for name, number in numbers.items()}


_TYPE: Final = _fields_of("text", apiVersion=1, kind=2)
# The server sets everything else of a new object's metadata.
_METADATA: Final = _fields_of("text", name=1, namespace=3, uid=5, resourceVersion=6) | _fields_of(
    "map of text", labels=11, annotations=12
)
_DELETE_OPTIONS: Final[Fields] = {
    1: ("gracePeriodSeconds", "number"),
    2: ("preconditions", _fields_of("text", uid=1, resourceVersion=2)),
    4: ("propagationPolicy", "text"),
    5: ("dryRun", ["text"]),
}


_OBJECT: Final[Fields] = {1: ("metadata", _METADATA)}
_KINDS: Final[dict[str, Fields]] = {
    "DeleteOptions": _DELETE_OPTIONS,
    "Eviction": {**_OBJECT, 2: ("deleteOptions", _DELETE_OPTIONS)},
    "Namespace": _OBJECT,
    "Secret": {**_OBJECT, 2: ("data", "map of bytes"), 3: ("type", "text")},
}


def decode(body: bytes) -> Json | None:
    """The object, None if it is of a kind that is not in the table. Raises StatusError 400 if it is no protobuf."""
    if not body.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix 6b387300")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        kind = _message(envelope[1], _TYPE)
        fields = _KINDS.get(kind["kind"])
        return None if fields is None else kind | _message(envelope.get(2, b""), fields)
    except (IndexError, KeyError, UnicodeDecodeError) as exc:
        raise bad_request(f"damaged protobuf message: {exc!r}") from exc


def _message(data: bytes, fields: Fields) -> Json:
    decoded: Json = {}
    for number, value in _fields(data):
        name, form = fields.get(number, ("", None))
        match form:
            case None:
                continue
            case [item]:
                decoded.setdefault(name, []).append(_value(value, item))
            case "map of text" | "map of bytes":
                entry = dict(_fields(value))
                decoded.setdefault(name, {})[entry[1].decode()] = _value(entry.get(2, b""), form[len("map of ") :])
            # Go writes empty strings too.
            case _ if form != "text" or value:
                decoded[name] = _value(value, form)
    return decoded


def _value(value: Any, form: Any) -> Any:
    match form:
        case "text":
            return value.decode()
        case "bytes":
            return base64.b64encode(value).decode()
        case "number":
            # A negative number is its complement to 2**64.
            return value - (1 << 64) if value >> 63 else value
    return _message(value, form)


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
        elif tag & 7 == _VARINT:
            yield tag >> 3, value
        else:
            raise IndexError(at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at += 1
        shift += 7
        if not data[at - 1] & 0x80:
            return value, at
