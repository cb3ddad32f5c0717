"""Distances of the devices of a node, like `nvidia-smi topo -m`: a row for each PCI position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topowise.attributes import devices
from topowise.attributes.pci_devices import Located
from topowise.pci import Place, distance
from topowise.text import Line
from topowise_scheduler.kubectl.table import columns

_MOST: Final = 16
"""The most positions with a column each; more columns would be wider than a screen."""


def table(located: Mapping[str, Located], devices_text: str) -> list[Line]:
    """The table, empty if no device has a position. Raises ParseError."""
    at: dict[Place, list[str]] = {}
    for name, device in located.items():
        at.setdefault(device.place, []).append(name)
    if not at:
        return []
    resources = {device.id: device.resource for device in devices.read(devices_text)}
    labels = [f"P{number}" for number in range(len(at))] if len(at) <= _MOST else []
    rows = [
        [
            f"P{number}",
            " > ".join(place.path),
            "-" if place.numa_node is None else str(place.numa_node),
            _devices(names, resources, located),
            *(distance(place, column) or "?" for column in at if labels),
        ]
        for number, (place, names) in enumerate(at.items())
    ]
    return columns(["", "PLACE", "NUMA NODE", "DEVICES", *labels], rows)


def _devices(names: Sequence[str], resources: Mapping[str, str], located: Mapping[str, Located]) -> str:
    """A single device by its id, with a different PCI address of its function; several devices by their number."""
    by_resource: dict[str, list[str]] = {}
    for name in names:
        by_resource.setdefault(resources.get(name, "unknown"), []).append(name)
    facts = []
    for resource, ids in sorted(by_resource.items()):
        if len(ids) > 1:
            facts.append(f"{len(ids)} {resource}")
        else:
            address = located[ids[0]].address
            facts.append(f"{resource} {ids[0]}" + ("" if address == ids[0] else f" ({address})"))
    return ", ".join(facts)
