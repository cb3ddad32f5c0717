"""The predicted placement of a pod, in its annotation `topowise.io/predicted`.

The annotation travels with the Binding; the API server copies it to the pod, so it needs no write. The pod alone shows
whether its actual placement differs from the prediction. JSON by container; CPUs and devices only if the node's ids are
known:

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
# The annotations of an object share 256 KiB; a pod of more containers gets none.
_LONGEST: Final = 16 << 10


class Expected(msgspec.Struct, frozen=True, omit_defaults=True):
    """`numa` are the NUMA nodes of the container's allocation, `cpus` is a cpulist."""

    numa: tuple[int, ...]
    cpus: str = ""
    devices: dict[str, tuple[str, ...]] = {}


_decode = msgspec.json.Decoder(dict[str, Expected]).decode


def for_binding(node: Kubelet, uid: str, *, has_ids: bool) -> dict[str, str]:
    """The annotation for a pod that the model has placed on the node.

    Empty if the pod has no exclusive resources, or if the text is too long.
    """
    placements = node.placements(uid)
    expected = {
        name: Expected(
            numa=node.ids(where.mask),
            cpus=cpuset.to_text(members(placements[name].cpus or 0)) if has_ids else "",
            devices={resource: ids for resource, ids in placements[name].devices.items() if ids} if has_ids else {},
        )
        for name, where in allocated_nodes(node, uid).items()
        if where.mask and name in placements
    }
    text = escaped_json(msgspec.json.encode(expected).decode())
    return {ANNOTATION: text} if expected and len(text) <= _LONGEST else {}


def numa_nodes(annotations: Mapping[str, str] | None) -> tuple[int, ...] | None:
    """All predicted NUMA nodes of a pod, None if the annotation is missing or invalid; any client may write it."""
    text = (annotations or {}).get(ANNOTATION, "")
    try:
        expected = _decode(text) if 0 < len(text) <= _LONGEST else {}
    except documents.UNREADABLE:
        return None
    return tuple(sorted({node for container in expected.values() for node in container.numa})) if expected else None
