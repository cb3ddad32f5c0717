"""PCI paths of devices (`topowise.io/pci`), and the NUMA node of each PCIe root (`topowise.io/pcie-roots`).

Paths are JSON in arrays without keys:
[["pci0000:17/0000:17:00.0", 0, ["0000:18:00.1", "0000:18:00.2"], {"GPU-5e...": "0000:18:00.0"}]]: an array for each
path, with the bridges above the devices, host bridge first; the NUMA node that the kernel names for them, or null;
device ids that are addresses; and other device ids with their addresses. Devices whose PCI function only their plug-in
knows are left out. `topowise.pci.distance` is the distance between two devices.

Roots are "pci0000:00=0,pci0000:5d=,pci0000:80=1". A device of a resource claim may name its PCIe root alone, or the
address of its PCI function. A root without a NUMA node has functions that name several NUMA nodes, or none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from topowise import attributes, digits, documents, pci
from topowise.errors import ParseError
from topowise.pci import Place

LONGEST: Final = 1 << 16
"""Characters: some three thousand functions, a tenth of an object's limit."""
_MOST_NODES: Final = 1 << 20
_LONGEST_ID: Final = 300
MOST_BYTES: Final = 8192
"""A machine with sixteen sockets has a few hundred roots, of some 14 characters each."""
_HIGHEST: Final = 63
_EXPECTED: Final = "PCIe roots, each with the id of a NUMA node or nothing (pci0000:17=0,pci0000:3a=)"


class Located(NamedTuple):
    """A device's PCI function, and its place."""

    address: str
    place: Place


class Written(NamedTuple):
    """The text, and the number of devices that are left out because of LONGEST."""

    text: str
    omitted: int


class _Group(msgspec.Struct, frozen=True, array_like=True):
    path: str
    numa_node: int | None
    addresses: list[str] = []
    others: dict[str, str] = {}


_decode = msgspec.json.Decoder(list[_Group]).decode


def write(devices: Mapping[str, Located], longest: int = LONGEST) -> Written:
    """Returns the text for devices by id, whatever their order."""
    groups: dict[Place, _Group] = {}
    for name, (address, place) in sorted(devices.items()):
        group = groups.setdefault(place, _Group("/".join(place.path), place.numa_node, [], {}))
        if name == address:
            group.addresses.append(name)
        else:
            group.others[name] = address
    ordered = sorted(groups.items(), key=lambda item: (_order(item[0]), item[1].path))
    parts: list[str] = []
    # Brackets around all groups, and a comma after each group but the last.
    length, omitted = 1, 0
    for _, group in ordered:
        part = msgspec.json.encode(group, order="sorted").decode()
        if length + len(part) + 1 > longest:
            omitted += len(group.addresses) + len(group.others)
            continue
        parts.append(part)
        length += len(part) + 1
    return Written(f"[{','.join(parts)}]", omitted)


def read(text: str) -> dict[str, Located]:
    """Returns the inverse of `write`, by device id. Raises ParseError."""
    if len(text) > LONGEST:
        raise ParseError("places", text, f"at most {LONGEST} characters")
    groups = documents.decoded(_decode, text, "places", '[["pci0000:17/0000:17:00.0", 0, ["0000:18:00.0"], {}]]')
    return {name: located for group in groups for name, located in _devices(group)}


def _devices(group: _Group) -> Iterator[tuple[str, Located]]:
    path, node = tuple(group.path.split("/")), group.numa_node
    pci.check_path(path)
    if node is not None and not 0 <= node < _MOST_NODES:
        raise ParseError("places", str(node), "the id of a NUMA node, or null")
    place = Place(path, node)
    for name, address in (*zip(group.addresses, group.addresses, strict=True), *group.others.items()):
        if not pci.is_address(address) or len(name) > _LONGEST_ID:
            raise ParseError("places", f"{name}: {address}", "an id of a device and an address (0000:18:00.0)")
        yield name, Located(address, place)


def _order(place: Place) -> list[tuple[int, ...]]:
    return [pci.numbers(step) or _host_bridge(step) for step in place.path]


def _host_bridge(name: str) -> tuple[int, ...]:
    """Returns domain and bus."""
    return tuple(int(part, 16) for part in name.removeprefix("pci").split(":"))


def write_roots(roots: Mapping[str, int | None]) -> str:
    """Returns the text, "" if it would be too long."""
    named = sorted((root, "" if node is None else str(node)) for root, node in roots.items())
    text = ",".join(f"{root}={node}" for root, node in named)
    return text if len(text) <= MOST_BYTES else ""


def read_roots(text: str) -> dict[str, int | None]:
    """Returns the inverse of `write`. Raises ParseError."""
    if len(text) > MOST_BYTES:
        raise ParseError(f"attribute {attributes.PCIE_ROOTS}", text, f"at most {MOST_BYTES} characters")
    return dict(map(_entry, text.split(","))) if text else {}


def _entry(text: str) -> tuple[str, int | None]:
    root, _, node = text.partition("=")
    number = digits.natural(node, 2) if node else None
    if not pci.is_host_bridge(root) or (node and (number is None or number > _HIGHEST)):
        raise ParseError(f"attribute {attributes.PCIE_ROOTS}", text, _EXPECTED)
    return root, number


def function_nodes(roots: Mapping[str, int | None]) -> Callable[[str], int | None]:
    """Returns a function from the address of a PCI function to its NUMA node, None if the node is not known.

    A function belongs to the root of its domain with the next lower bus: a host bridge has a contiguous range of buses
    that begins with its own (ACPI _CRS), and `roots` are all that the machine has.
    """
    by_bus = sorted((_numbers(root), root) for root in roots)
    buses = [numbers for numbers, _ in by_bus]

    def node_of(address: str) -> int | None:
        domain_and_bus = pci.numbers(address)[:2]
        at = bisect_right(buses, domain_and_bus) - 1
        if not domain_and_bus or at < 0 or buses[at][0] != domain_and_bus[0]:
            return None
        return roots[by_bus[at][1]]

    return node_of


def _numbers(root: str) -> tuple[int, ...]:
    domain, _, bus = root.removeprefix("pci").partition(":")
    return int(domain, 16), int(bus, 16)
