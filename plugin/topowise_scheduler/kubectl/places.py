"""How far the devices of a node are apart: a table in the manner of `nvidia-smi topo -m`, a row for each place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topowise.attributes import devices
from topowise.attributes.pci_devices import Located
from topowise.pci import Place, distance
from topowise.text import Line
from topowise_scheduler.kubectl.columns import columns

_MOST: Final = 16
"""Places with a column each: with more the lines would be longer than a screen is wide."""


def table(located: Mapping[str, Located], devices_text: str) -> list[Line]:
    """The table, no lines if no device has a place. Raises ParseError."""
    at: dict[Place, list[str]] = {}
    for name, found in located.items():
        at.setdefault(found.place, []).append(name)
    if not at:
        return []
    resources = {one.id: one.resource for one in devices.read(devices_text)}
    labels = [f"P{number}" for number in range(len(at))] if len(at) <= _MOST else []
    rows = [
        [
            f"P{number}",
            " > ".join(place.path),
            "-" if place.numa_node is None else str(place.numa_node),
            _devices(names, resources, located),
            *(distance(place, other) or "?" for other in at if labels),
        ]
        for number, (place, names) in enumerate(at.items())
    ]
    return columns(["", "PLACE", "NUMA NODE", "DEVICES", *labels], rows)


def _devices(names: Sequence[str], resources: Mapping[str, str], located: Mapping[str, Located]) -> str:
    """One device by its id, and its function's address if that is another; several of a resource by their number."""
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
