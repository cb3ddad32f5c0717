"""Limits the size of an object by leaving out optional attributes. Pure.

topowise-scheduler does not use an object of more than 512 KiB (nrt.MOST_BYTES), and etcd accepts no request of more
than 1.5 MiB (`--max-request-bytes`). The limit leaves space for managed fields and metadata of other writers, which are
stored with the object.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from topowise import attributes, nrt, numaplacement
from topowise.quantity import human_bytes

LIMIT: Final = nrt.MOST_BYTES - (64 << 10)
"""Bytes of an encoded object."""

# In order of removal: first the attributes with the fewest readers. Without holdings topowise-scheduler reads the node
# by amounts only, and has no use for device ids.
_OPTIONAL: Final = (
    (numaplacement.METADATA_ATTRIBUTE, numaplacement.VECTOR_ATTRIBUTE),
    (attributes.HOLDINGS, attributes.DEVICES, attributes.PCI, attributes.PCI_OMITTED),
    (attributes.ZONE_CPUS_AVAILABLE, attributes.CORES),
)


class Fitted(NamedTuple):
    """An object to write, the attributes that were left out of it, and its size."""

    topology: nrt.NodeResourceTopology
    left_out: tuple[str, ...]
    bytes: int


def fit(topology: nrt.NodeResourceTopology, limit: int = LIMIT) -> Fitted:
    """Returns the object without as many optional attributes as necessary; `bytes` may still exceed the limit."""
    left_out: tuple[str, ...] = ()
    size = len(msgspec.json.encode(topology))
    for names in _OPTIONAL:
        if size <= limit:
            break
        topology = _without(topology, frozenset(names))
        left_out += names
        size = len(msgspec.json.encode(topology))
    return Fitted(topology, left_out, size)


def warning(fitted: Fitted, limit: int) -> str:
    """Returns what was left out, or that the object is still too large."""
    if fitted.bytes > limit:
        return f"{human_bytes(fitted.bytes)} without any of {', '.join(fitted.left_out)}, at most {human_bytes(limit)}"
    return f"at most {human_bytes(limit)} can be written, left out: {', '.join(fitted.left_out)}"


def _without(topology: nrt.NodeResourceTopology, names: frozenset[str]) -> nrt.NodeResourceTopology:
    zones = tuple(
        msgspec.structs.replace(zone, attributes=_others(zone.attributes, names)) for zone in topology.zones or ()
    )
    return msgspec.structs.replace(topology, zones=zones, attributes=_others(topology.attributes, names))


def _others(attributes: tuple[nrt.Attribute, ...] | None, excluded: frozenset[str]) -> tuple[nrt.Attribute, ...]:
    return tuple(attribute for attribute in attributes or () if attribute.name not in excluded)
