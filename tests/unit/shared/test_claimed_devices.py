"""The NUMA node of a device by the PCIe roots of a machine, as the scheduler knows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise.attributes import pci_devices
from topowise.claimed_devices import Location, NumaNodes, Value, location
from topowise.errors import ParseError

ROOTS: dict[str, int | None] = {
    "pci0000:00": 0,
    "pci0000:17": 0,
    "pci0000:5d": None,
    "pci0000:80": 1,
    "pci10000:00": 1,
}


def test_roots_survive_the_text() -> None:
    text = "pci0000:00=0,pci0000:17=0,pci0000:5d=,pci0000:80=1,pci10000:00=1"
    assert pci_devices.write_roots(ROOTS) == text
    assert pci_devices.read_roots(text) == ROOTS
    assert pci_devices.read_roots(pci_devices.write_roots({})) == {}


def test_a_machine_with_too_many_roots_has_no_text() -> None:
    many: dict[str, int | None] = {f"pci{domain:04x}:00": 0 for domain in range(1000)}
    assert not pci_devices.write_roots(many)


@pytest.mark.parametrize("text", ["0000:17=0", "pci0000:17=x", "pci0000:17=64", "pci0000:17=0,", "=" * 9000])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        pci_devices.read_roots(text)


@pytest.mark.parametrize(
    ("address", "node"),
    [
        ("0000:00:1f.0", 0),
        ("0000:16:00.0", 0),
        ("0000:17:00.0", 0),
        ("0000:5c:00.0", 0),
        # The root of this function has no NUMA node; the root before it is not its root.
        ("0000:5e:00.0", None),
        ("0000:80:00.0", 1),
        ("0000:ff:00.0", 1),
        ("10000:02:00.0", 1),
        ("0001:00:00.0", None),
        ("mlx5_0", None),
        ("", None),
    ],
)
def test_a_function_is_below_the_root_with_the_next_lower_bus(address: str, node: int | None) -> None:
    assert pci_devices.function_nodes(ROOTS)(address) == node


@given(st.text(max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        roots = pci_devices.read_roots(text)
    except ParseError:
        return
    pci_devices.function_nodes(roots)("0000:17:00.0")


def test_the_drivers_value_comes_before_function_and_root() -> None:
    near = {root: () if node is None else (node,) for root, node in ROOTS.items()}
    nodes = NumaNodes((0, 1), pci_devices.function_nodes(ROOTS), near)
    assert nodes.of(Location(1, "0000:17:00.0", ("pci0000:00",))) == 1
    assert nodes.of(Location(-1, "0000:81:00.0", ("pci0000:00",))) == 1
    assert nodes.of(Location(None, "", ("pci0000:80",))) == 1
    assert nodes.of(Location(None, "", ("pci0000:80", "pci0000:17"))) is None
    assert nodes.of(Location(None, "", ("pci0000:5d",))) is None
    assert nodes.of(Location()) is None


def test_attributes_of_the_driver_itself_need_no_domain() -> None:
    assert location({"numaNode": Value(integer=1)}, "gpu.example.com") == Location(1)
    assert location({"gpu.example.com/numaNode": Value(integer=1)}, "gpu.example.com") == Location(1)
    assert location({"other.example.com/numaNode": Value(integer=1)}, "gpu.example.com") == Location()
    listed = {"resource.kubernetes.io/pcieRoot": Value(strings=("pci0000:17", "pci0000:80"))}
    assert location(listed, "cpu.example.com") == Location(pcie_roots=("pci0000:17", "pci0000:80"))
