"""The PCI tree of a picture: what hangs on what, and what nobody knows the place of."""

from __future__ import annotations

from collections.abc import Callable

from topowise.attributes import pci_devices
from topowise.attributes.pci_devices import Located
from topowise.pci import Place
from topowise_scheduler.view.picture import Picture, terminal, with_places
from topowise_scheduler.view.picture.model import Branch, Device, Devices, Zone

GPU, NIC = "nvidia.com/gpu", "rdma/shared"
PICTURE = Picture(
    "n1",
    "none",
    "container",
    "exact",
    (Zone(0, (), (), (Devices(GPU, (Device("g0", is_held=True), Device("g1"))), Devices(NIC, (Device("nic"),)))),),
    elsewhere=(Devices("example.com/slots", (Device("0"), Device("1"))),),
)
SWITCH = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")


def located(**paths: tuple[int | None, tuple[str, ...]]) -> dict[str, Located]:
    """As the attribute has them, in the order of buses."""
    at = {name: Located(f"0000:0{at}:00.0", Place(path, node)) for at, (name, (node, path)) in enumerate(paths.items())}
    return pci_devices.read(pci_devices.write(at).text)


def test_bridges_that_only_lead_on_are_one_line() -> None:
    drawn = with_places(PICTURE, located(g0=(0, (*SWITCH, "0000:02:00.0")), nic=(0, (*SWITCH, "0000:02:01.0"))))
    assert drawn.pci == (
        Branch(0, SWITCH, 0, ()),
        Branch(1, ("0000:02:00.0",), None, (Devices(GPU, (Device("g0", is_held=True),)),)),
        Branch(1, ("0000:02:01.0",), None, (Devices(NIC, (Device("nic"),)),)),
    )


def test_a_bridge_with_devices_of_its_own_is_a_line_of_its_own() -> None:
    drawn = with_places(PICTURE, located(g0=(0, ("pci0000:00",)), nic=(0, ("pci0000:00", "0000:00:01.0"))))
    assert [(one.depth, one.bridges) for one in drawn.pci] == [(0, ("pci0000:00",)), (1, ("0000:00:01.0",))]


def test_a_root_complex_has_the_node_that_its_devices_agree_on() -> None:
    apart = (0, ("pci0000:00", "0000:00:01.0")), (1, ("pci0000:00", "0000:00:02.0"))
    drawn = with_places(PICTURE, located(g0=apart[0], g1=apart[1], nic=(1, ("pci0000:40",))))
    assert [one.numa_node for one in drawn.pci if not one.depth] == [None, 1]


def test_what_is_nowhere_is_counted_by_resource() -> None:
    drawn = with_places(PICTURE, located(g1=(0, ("pci0000:00",)), gone=(0, ("pci0000:10",))))
    assert [branch.bridges for branch in drawn.pci] == [("pci0000:00",)]
    assert drawn.unplaced == (("example.com/slots", 2), (GPU, 1), (NIC, 1))
    shown = terminal(drawn, width=80)
    assert "place not known · 2 devices of example.com/slots" in shown
    assert "1 device of nvidia.com/gpu" in shown


def test_without_places_or_ids_the_picture_stays_as_it_is(picture_of: Callable[[str], Picture]) -> None:
    assert with_places(PICTURE, {}) == PICTURE
    counts = picture_of("two-zones-counts")
    assert with_places(counts, located(g0=(0, SWITCH))) == counts
