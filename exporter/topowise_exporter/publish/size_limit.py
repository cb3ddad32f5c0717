"""How large an object may be, and what is left out of one that is larger. Pure.

topowise-scheduler does not use an object of more than 512 KiB (nrt.MOST_BYTES), and etcd takes no request of more than
1.5 MiB (`--max-request-bytes`). Managed fields and what others write into the metadata are stored with the object, so
some room is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from topowise import attributes, nrt, numaplacement
from topowise.quantity import human_bytes

LIMIT: Final = nrt.MOST_BYTES - (64 << 10)
"""Bytes of an encoded object."""

# First what fewest readers miss. Without holdings topowise-scheduler reads the node by counts, and the ids of devices
# are no use to it then.
_OPTIONAL: Final = (
    (numaplacement.METADATA_ATTRIBUTE, numaplacement.VECTOR_ATTRIBUTE),
    (attributes.HOLDINGS, attributes.DEVICES, attributes.PCI, attributes.PCI_OMITTED),
    (attributes.ZONE_CPUS_AVAILABLE, attributes.CORES),
)


class Fitted(NamedTuple):
    """An object that can be written, and what was left out of it for that."""

    topology: nrt.NodeResourceTopology
    left_out: tuple[str, ...]
    bytes: int


def fit(
    topology: nrt.NodeResourceTopology,
    limit: int = LIMIT,
    encode: Callable[[object], bytes] = msgspec.json.encode,
) -> Fitted:
    """The object without as many optional attributes as it takes; `bytes` is above the limit if that was not enough."""
    left_out: tuple[str, ...] = ()
    size = len(encode(topology))
    for names in _OPTIONAL:
        if size <= limit:
            break
        topology = _without(topology, frozenset(names))
        left_out += names
        size = len(encode(topology))
    return Fitted(topology, left_out, size)


def warning(fitted: Fitted, limit: int) -> str:
    """What was done to make it fit, or that it cannot be made to."""
    if fitted.bytes > limit:
        return f"{human_bytes(fitted.bytes)} without any of {', '.join(fitted.left_out)}, at most {human_bytes(limit)}"
    return f"at most {human_bytes(limit)} can be written, left out: {', '.join(fitted.left_out)}"


def _without(topology: nrt.NodeResourceTopology, names: frozenset[str]) -> nrt.NodeResourceTopology:
    zones = tuple(
        msgspec.structs.replace(zone, attributes=_others(zone.attributes, names)) for zone in topology.zones or ()
    )
    return msgspec.structs.replace(topology, zones=zones, attributes=_others(topology.attributes, names))


def _others(held: tuple[nrt.Attribute, ...] | None, names: frozenset[str]) -> tuple[nrt.Attribute, ...]:
    return tuple(attribute for attribute in held or () if attribute.name not in names)
