"""NodeResourceTopology (`topology.node.k8s.io/v1alpha2`), the contract between exporters and schedulers.

The structs fit the objects of every producer (RTE, NFD, koordlet, topowise): unknown fields are dropped, quantities
stay text until a number is needed, and v1alpha1 objects (zones plus the required `topologyPolicies`) decode with the
same structs. Schema: github.com/k8stopologyawareschedwg/noderesourcetopology-api.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from topowise import digits, quantity
from topowise.attributes import ABSENT

GROUP: Final = "topology.node.k8s.io"
VERSION: Final = "v1alpha2"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "NodeResourceTopology"
PLURAL: Final = "noderesourcetopologies"
PATH: Final = f"/apis/{API_VERSION}/{PLURAL}"
# The only served version where only Koordinator's or an old RTE's CRD was ever installed. It has no top-level
# attributes, and the API server drops them from objects in this version. So it is read only where VERSION is not
# served.
OLD_VERSION: Final = "v1alpha1"
OLD_PATH: Final = f"/apis/{GROUP}/{OLD_VERSION}/{PLURAL}"
ZONE_TYPE: Final = "Node"
MOST_BYTES: Final = 512 << 10
"""Limit for the JSON of an object that topowise-scheduler reads. A node with 1,000 pods and 3,000 devices has less than
300 KiB."""


class Attribute(msgspec.Struct, frozen=True, gc=False):
    name: str
    value: str


class Cost(msgspec.Struct, frozen=True, gc=False):
    """The distance from this zone to the zone `name` (10 is local in the kernel's unit)."""

    name: str
    value: int


class Resource(msgspec.Struct, frozen=True, gc=False):
    """A resource of a zone, in Kubernetes quantities: capacity >= allocatable >= available."""

    name: str
    capacity: str | int
    allocatable: str | int
    available: str | int


class Zone(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    type: str
    parent: str = ""
    costs: tuple[Cost, ...] | None = ()
    attributes: tuple[Attribute, ...] | None = ()
    resources: tuple[Resource, ...] | None = ()


class OwnerReference(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    apiVersion: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    blockOwnerDeletion: bool | None = None


class ManagedFields(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    manager: str = ""
    operation: str = ""


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str = ""
    uid: str = ""
    resourceVersion: str = ""
    generation: int = 0
    creationTimestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: tuple[OwnerReference, ...] | None = None
    managedFields: tuple[ManagedFields, ...] | None = None


class NodeResourceTopology(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    apiVersion: str = ""
    kind: str = ""
    metadata: Metadata
    zones: tuple[Zone, ...] | None = ()
    attributes: tuple[Attribute, ...] | None = ()
    topologyPolicies: tuple[str, ...] | None = ()


class _Identity(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    resourceVersion: str = ""


class _Identified(msgspec.Struct, frozen=True):
    metadata: _Identity


class LazyZone(msgspec.Struct, frozen=True):
    """A zone whose lists of amounts are still as they came."""

    name: str
    type: str
    parent: str = ""
    costs: msgspec.Raw = msgspec.Raw(b"[]")
    attributes: tuple[Attribute, ...] | None = ()
    resources: msgspec.Raw = msgspec.Raw(b"[]")

    def whole(self) -> Zone:
        """All of it. Raises msgspec.DecodeError."""
        costs, resources = _decode_costs(self.costs), _decode_resources(self.resources)
        return Zone(self.name, self.type, self.parent, costs, self.attributes, resources)


class LazyTopology(msgspec.Struct, frozen=True, kw_only=True):
    """An object whose zones are not decoded whole: an exporter that writes anew has changed one or two of them."""

    apiVersion: str = ""
    kind: str = ""
    metadata: Metadata
    zones: tuple[LazyZone, ...] | None = ()
    attributes: tuple[Attribute, ...] | None = ()
    topologyPolicies: tuple[str, ...] | None = ()

    def whole(self) -> NodeResourceTopology:
        """The object as `decode` has it. Raises msgspec.DecodeError."""
        zones = None if self.zones is None else tuple([zone.whole() for zone in self.zones])
        return current(NodeResourceTopology(**(msgspec.structs.asdict(self) | {"zones": zones})))


_decode = msgspec.json.Decoder(NodeResourceTopology).decode
decode_lazily = msgspec.json.Decoder(LazyTopology).decode
_decode_identified = msgspec.json.Decoder(_Identified).decode
_decode_costs = msgspec.json.Decoder(tuple[Cost, ...] | None).decode
_decode_resources = msgspec.json.Decoder(tuple[Resource, ...] | None).decode


def decode(raw: bytes | str | msgspec.Raw) -> NodeResourceTopology:
    """Decodes an object of either version, as an object of VERSION. Raises msgspec.DecodeError."""
    return current(_decode(raw))


def decode_identity(raw: bytes | msgspec.Raw) -> tuple[str, str]:
    """Returns name and resourceVersion of an object, whatever else it has. Raises msgspec.DecodeError."""
    metadata = _decode_identified(raw).metadata
    return metadata.name, metadata.resourceVersion


def current(topology: NodeResourceTopology) -> NodeResourceTopology:
    """Returns the object as an object of VERSION: v1alpha1 fields have the same meaning there."""
    if topology.apiVersion != f"{GROUP}/{OLD_VERSION}":
        return topology
    return msgspec.structs.replace(topology, apiVersion=API_VERSION)


def new(
    name: str,
    zones: Iterable[Zone],
    attributes: Iterable[Attribute] = (),
    *,
    annotations: Mapping[str, str] | None = None,
    owner: OwnerReference | None = None,
) -> NodeResourceTopology:
    """Returns an object to write: zones by numeric id, attributes and resources by name."""
    return NodeResourceTopology(
        apiVersion=API_VERSION,
        kind=KIND,
        metadata=Metadata(
            name=name,
            annotations=dict(sorted(annotations.items())) if annotations else None,
            ownerReferences=(owner,) if owner else None,
        ),
        zones=tuple(sorted(zones, key=lambda zone: (zone_id(zone.name) is None, zone_id(zone.name) or 0, zone.name))),
        attributes=tuple(sorted(attributes, key=lambda attribute: attribute.name)),
    )


def zone_name(numa_id: int) -> str:
    """Returns the canonical name of a NUMA zone, `node-<id>`."""
    return f"node-{numa_id}"


def zone_id(name: str) -> int | None:
    """Returns the NUMA node id of a canonical zone name, None for any other name. "node-007" is not canonical."""
    number = digits.natural(name.removeprefix("node-"))
    return number if number is not None and name == zone_name(number) else None


def numa_zones(topology: NodeResourceTopology) -> list[tuple[int, Zone]]:
    """Returns the zones of type Node with a canonical name, by id, without the placeholder zones of missing nodes."""
    zone_by_id = {
        numa_id: zone
        for zone in topology.zones or ()
        if is_numa_zone(zone) and (numa_id := zone_id(zone.name)) is not None
    }
    return sorted(zone_by_id.items())


def is_numa_zone(zone: Zone) -> bool:
    """Whether the zone is an existing NUMA node."""
    return zone.type == ZONE_TYPE and not is_absent(zone)


def is_absent(zone: Zone) -> bool:
    """Whether the zone is a placeholder: the machine has no such node."""
    return not zone.resources and attributes_of(zone.attributes).get(ABSENT) == "true"


def attributes_of(attributes: Iterable[Attribute] | None) -> dict[str, str]:
    """Returns attributes by name; the last of a repeated name wins, as for every consumer that builds a map."""
    return {attribute.name: attribute.value for attribute in attributes or ()}


def same_content(a: NodeResourceTopology, b: NodeResourceTopology) -> bool:
    """Whether two objects have the same content, whatever the order of their lists and the format of quantities."""
    return _content(a) == _content(b)


def _content(topology: NodeResourceTopology) -> object:
    return (
        sorted((attribute.name, attribute.value) for attribute in topology.attributes or ()),
        sorted(topology.topologyPolicies or ()),
        sorted(
            (
                zone.name,
                zone.type,
                zone.parent,
                sorted((cost.name, cost.value) for cost in zone.costs or ()),
                sorted((attribute.name, attribute.value) for attribute in zone.attributes or ()),
                sorted(
                    (
                        resource.name,
                        *(
                            quantity.milli_value(amount)
                            for amount in (resource.capacity, resource.allocatable, resource.available)
                        ),
                    )
                    for resource in zone.resources or ()
                ),
            )
            for zone in topology.zones or ()
        ),
    )
