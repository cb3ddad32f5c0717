"""Allocations of pods by ids: `topowise.io/holdings`, JSON in arrays without keys, because there may be hundreds of
pods.

Only pods with resources of a NUMA node are included. A pod that the kubelet does not list by name, because only a
finished init container of it holds CPUs, has no namespace, and its UID as name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from topowise import cpuset, documents
from topowise.errors import ParseError


class Block(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """`size` bytes on `nodes` (a nodelist) together."""

    type: str
    nodes: str
    size: int


class Container(msgspec.Struct, frozen=True, array_like=True):
    """`cpus` is a cpulist; `devices` maps a resource to device ids."""

    name: str
    cpus: str = ""
    memory: tuple[Block, ...] = ()
    devices: dict[str, tuple[str, ...]] = {}

    def cpu_ids(self) -> frozenset[int]:
        """Returns the CPUs as a set. Raises ParseError."""
        return cpuset.parse(self.cpus)


class Pod(msgspec.Struct, frozen=True, array_like=True):
    """`own_cpus` and `own_memory` are pod-level resources (KEP-5526)."""

    namespace: str
    name: str
    containers: tuple[Container, ...] = ()
    own_cpus: str = ""
    own_memory: tuple[Block, ...] = ()


_decode = msgspec.json.Decoder(tuple[Pod, ...]).decode
_decode_texts = msgspec.json.Decoder(tuple[msgspec.Raw, ...]).decode
_decode_pod = msgspec.json.Decoder(Pod).decode

_EXPECTED: Final = '[["namespace", "pod", [["container", "cpulist", [], {}]]]]'


def write(pods: Iterable[Pod]) -> str:
    """Returns the text, whatever the order of the pods."""
    ordered = sorted(pods, key=lambda pod: (pod.namespace, pod.name))
    return msgspec.json.encode(ordered, order="sorted").decode()


def read(text: str) -> tuple[Pod, ...]:
    """Returns the inverse of `write`. Raises ParseError."""
    return documents.decoded(_decode, text, "holdings", _EXPECTED)


def texts(text: str) -> tuple[msgspec.Raw, ...]:
    """Returns the undecoded text of each pod, for `pod`. Raises ParseError."""
    return documents.decoded(_decode_texts, text, "holdings", _EXPECTED)


def pod(text: bytes) -> Pod:
    """Decodes a pod of `texts`. Raises ParseError."""
    try:
        return _decode_pod(text)
    except documents.UNREADABLE as exc:
        raise ParseError("holdings of a pod", bytes(text).decode(errors="replace"), _EXPECTED[1:-1]) from exc
