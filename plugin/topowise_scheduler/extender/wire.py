"""The extender's JSON, exactly as Go writes and reads it.

The Go types have no JSON tags, so keys are Go field names; Go writes `null` for empty pointers, maps and slices, and
decodes a Score of 7.0 not at all. Source: k8s.io/kube-scheduler/extender/v1/types.go.
"""

from __future__ import annotations

import msgspec

from topowise import pods


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _NodeName(msgspec.Struct, frozen=True, gc=False):
    metadata: _Metadata


class NodeList(msgspec.Struct, frozen=True):
    """Whole Node objects, sent with `nodeCacheCapable: false`; kept as bytes, because they go back as they came."""

    items: list[msgspec.Raw] | None = None


class ExtenderArgs(msgspec.Struct, frozen=True):
    """Request of filter and prioritize; exactly one of Nodes and NodeNames is set."""

    Pod: pods.Pod
    Nodes: NodeList | None = None
    NodeNames: list[str] | None = None


class ExtenderFilterResult(msgspec.Struct, frozen=True):
    """Answer of filter. A node in none of the three is refused without a reason, so every node is in one."""

    Nodes: NodeList | None = None
    NodeNames: list[str] | None = None
    FailedNodes: dict[str, str] = {}
    FailedAndUnresolvableNodes: dict[str, str] = {}
    Error: str = ""


class HostPriority(msgspec.Struct, frozen=True, gc=False):
    """One entry of prioritize's answer, which is a bare array of them."""

    Host: str
    Score: int


class NodeExplanation(msgspec.Struct, frozen=True, gc=False):
    """One entry of explain's answer (our own verb)."""

    Host: str
    Fits: bool
    Score: int
    Reason: str
    Detail: str


decode_args = msgspec.json.Decoder(ExtenderArgs).decode
decode_node_name = msgspec.json.Decoder(_NodeName).decode
encode = msgspec.json.Encoder().encode
