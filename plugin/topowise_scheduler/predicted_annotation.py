"""What a pod is expected to get, in an annotation of the pod: `topowise.io/predicted`.

It travels with the Binding, whose annotations the API server copies to the pod, so it costs no write. Whoever sees a
pod that lies elsewhere can tell from the pod alone what was predicted. JSON by container; CPUs and devices only where
the node is known by their ids:

    {"solver":{"numa":[0],"cpus":"1-4,33-36","devices":{"nvidia.com/gpu":["0000:3b:00.0"]}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from topowise import cpuset, documents
from topowise.text import escaped_json
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.kubelet.masks import members

ANNOTATION: Final = "topowise.io/predicted"
# All annotations of an object have 256 KiB together; a pod of more containers goes without.
_LONGEST: Final = 16 << 10


class Expected(msgspec.Struct, frozen=True, omit_defaults=True):
    """`numa` are the NUMA nodes of all that the container will hold, `cpus` a list as in cpusets."""

    numa: tuple[int, ...]
    cpus: str = ""
    devices: dict[str, tuple[str, ...]] = {}


_decode = msgspec.json.Decoder(dict[str, Expected]).decode


def for_binding(node: Kubelet, uid: str, *, has_ids: bool) -> dict[str, str]:
    """The annotations for a pod that is placed on the node; none if it holds nothing of its own, or far too much."""
    placements = node.placements(uid)
    expected = {
        name: Expected(
            numa=node.ids(where.mask),
            cpus=cpuset.spell(members(placements[name].cpus or 0)) if has_ids else "",
            devices={resource: ids for resource, ids in placements[name].devices.items() if ids} if has_ids else {},
        )
        for name, where in allocated_nodes(node, uid).items()
        if where.mask and name in placements
    }
    text = escaped_json(msgspec.json.encode(expected).decode())
    return {ANNOTATION: text} if expected and len(text) <= _LONGEST else {}


def numa_nodes(annotations: Mapping[str, str] | None) -> tuple[int, ...] | None:
    """The NUMA nodes of all that a pod was expected to get, None if it does not tell; anybody may write annotations."""
    text = (annotations or {}).get(ANNOTATION, "")
    try:
        expected = _decode(text) if 0 < len(text) <= _LONGEST else {}
    except documents.UNREADABLE:
        return None
    return tuple(sorted({node for one in expected.values() for node in one.numa})) if expected else None
