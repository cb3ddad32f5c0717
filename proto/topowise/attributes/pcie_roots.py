"""`topowise.io/pcie-roots`: the NUMA node of each PCIe root of a machine, "pci0000:00=0,pci0000:5d=,pci0000:80=1".

A device of a resource claim may name its PCIe root alone, or the address of its PCI function. A root without a NUMA
node has functions that name several NUMA nodes, or none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Final

from topowise import attributes, digits, pci
from topowise.errors import ParseError

MOST_BYTES: Final = 8192
"""A machine with sixteen sockets has a few hundred roots, of some 14 characters each."""
_HIGHEST: Final = 63
_EXPECTED: Final = "PCIe roots, each with the id of a NUMA node or nothing (pci0000:17=0,pci0000:3a=)"


def write(roots: Mapping[str, int | None]) -> str:
    """Returns the text, "" if it would be too long."""
    named = sorted((root, "" if node is None else str(node)) for root, node in roots.items())
    text = ",".join(f"{root}={node}" for root, node in named)
    return text if len(text) <= MOST_BYTES else ""


def read(text: str) -> dict[str, int | None]:
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
