"""The extender's JSON, exactly as Go writes and reads it.

The Go types have no JSON tags, so keys are Go field names. Go writes `null` for empty pointers, maps and slices, and
cannot decode a Score of 7.0. Source: k8s.io/kube-scheduler/extender/v1/types.go.
"""

from __future__ import annotations

from typing import Final

import msgspec

from topowise import pods
from topowise_scheduler.ledger.pods.records import LARGE_BYTES, too_large


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _NodeName(msgspec.Struct, frozen=True, gc=False):
    metadata: _Metadata


class NodeList(msgspec.Struct, frozen=True):
    """Whole Node objects, sent with `nodeCacheCapable: false`; as bytes, because the answer repeats them unchanged."""

    items: list[msgspec.Raw] | None = None


class ExtenderArgs(msgspec.Struct, frozen=True):
    """Request of filter and prioritize; either Nodes or NodeNames is set."""

    Pod: pods.Pod
    Nodes: NodeList | None = None
    NodeNames: list[str] | None = None


class _Uid(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""
    resourceVersion: str = ""


class _Named(msgspec.Struct, frozen=True, gc=False):
    metadata: _Uid


class Repeated(msgspec.Struct, frozen=True):
    """The fields of prioritize's ExtenderArgs that identify the pod and the nodes of an earlier filter."""

    Pod: _Named
    NodeNames: list[str] | None = None


class ExtenderFilterResult(msgspec.Struct, frozen=True):
    """A filter answer. kube-scheduler drops a node that is neither in NodeNames nor in a map, without a reason."""

    Nodes: NodeList | None = None
    NodeNames: list[str] | None = None
    FailedNodes: dict[str, str] = {}
    FailedAndUnresolvableNodes: dict[str, str] = {}
    Error: str = ""


class HostPriority(msgspec.Struct, frozen=True, gc=False):
    """Entry of prioritize's answer, which is a bare array."""

    Host: str
    Score: int


class MetaPod(msgspec.Struct, frozen=True, gc=False):
    """A victim by its uid."""

    UID: str


class MetaVictims(msgspec.Struct, frozen=True):
    """The victims on one node; Go sends null for no pods."""

    Pods: list[MetaPod] | None = None
    NumPDBViolations: int = 0


class Victims(msgspec.Struct, frozen=True):
    """Victims on one node as whole pods, sent with `nodeCacheCapable: false`."""

    Pods: list[pods.Pod] | None = None
    NumPDBViolations: int = 0


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True):
    """Request of preempt; either of the maps is set."""

    Pod: pods.Pod
    NodeNameToVictims: dict[str, Victims | None] | None = None
    NodeNameToMetaVictims: dict[str, MetaVictims | None] | None = None


class ExtenderPreemptionResult(msgspec.Struct, frozen=True):
    """Answer of preempt, always in the meta form."""

    NodeNameToMetaVictims: dict[str, MetaVictims] = {}


class ExtenderBindingArgs(msgspec.Struct, frozen=True):
    """Request of bind."""

    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class ExtenderBindingResult(msgspec.Struct, frozen=True):
    """Answer of bind; an error sends the pod back into the queue."""

    Error: str = ""


class _RawArgs(msgspec.Struct, frozen=True):
    Pod: msgspec.Raw
    Nodes: NodeList | None = None
    NodeNames: list[str] | None = None


_decode_raw = msgspec.json.Decoder(_RawArgs).decode
_decode_args = msgspec.json.Decoder(ExtenderArgs).decode


def decode_args(body: bytes) -> ExtenderArgs:
    """The request. Of a pod with too many containers, the containers are not decoded."""
    if len(body) <= LARGE_BYTES:
        return _decode_args(body)
    raw = _decode_raw(body)
    return ExtenderArgs(too_large(raw.Pod) or pods.decode(raw.Pod), raw.Nodes, raw.NodeNames)


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding bytes of a client."""

decode_result = msgspec.json.Decoder(ExtenderFilterResult).decode
decode_repeated = msgspec.json.Decoder(Repeated).decode
decode_preemption = msgspec.json.Decoder(ExtenderPreemptionArgs).decode
decode_binding = msgspec.json.Decoder(ExtenderBindingArgs).decode
decode_names = msgspec.json.Decoder(list[str]).decode
decode_node_name = msgspec.json.Decoder(_NodeName).decode
encode = msgspec.json.Encoder().encode
