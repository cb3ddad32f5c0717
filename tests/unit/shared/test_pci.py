"""Where PCI functions are, from the kernel's links, and how far two are apart in nvidia-smi's words."""

from __future__ import annotations

import pytest

from sandbox import machines
from topowise import pci
from topowise.errors import ParseError
from topowise.pci import Distance, Place, distance

PORTS = ("0000:02:00.0", "0000:02:01.0", "0000:02:02.0")
# A root port with a switch, on whose third port hangs a switch again; a second root port of the same root complex; root
# complexes on the same NUMA node, on the second node, and on a node that the firmware does not name.
MACHINE = machines.Machine(
    nodes=(machines.Node(0, machines.GIB, cores=1), machines.Node(1, machines.GIB, socket=1, cores=1)),
    distances=((10, 21), (21, 10)),
    pci=(
        *machines.switch("0000:00:01.0", "0000:01:00.0", PORTS, 0),
        machines.Pci("0000:05:00.0", 0, "0x060400", "0x1000", "0xc030", "pcieport", root_port=PORTS[2]),
        machines.Pci("0000:06:00.0", 0, "0x060400", "0x1000", "0xc030", "pcieport", root_port="0000:05:00.0"),
        machines.nvme("0000:03:00.0", 0, PORTS[0]),
        machines.nvme("0000:03:00.1", 0, PORTS[0]),
        machines.nvme("0000:04:00.0", 0, PORTS[1]),
        machines.nvme("0000:07:00.0", 0, "0000:06:00.0"),
        *machines.nic("0000:0a:00.0", 0, "0000:00:02.0", virtual_functions=2),
        *machines.gpu("0000:3b:00.0", 0, "0000:3a:00.0"),
        *machines.gpu("0000:bb:00.0", 1, "0000:ba:00.0"),
        *machines.gpu("0000:db:00.0", None, "0000:da:00.0"),
    ),
)
PLACES = {function.address: Place(machines.above(MACHINE, function), function.node) for function in MACHINE.pci}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("0000:03:00.0", "0000:03:00.0", "PIX"),
        ("0000:03:00.0", "0000:03:00.1", "PIX"),
        ("0000:0a:00.0", "0000:0a:00.2", "PIX"),
        ("0000:03:00.0", "0000:04:00.0", "PIX"),
        ("0000:03:00.0", "0000:07:00.0", "PXB"),
        ("0000:03:00.0", "0000:0a:00.0", "PHB"),
        ("0000:00:01.0", "0000:00:02.0", "PHB"),
        ("0000:03:00.0", "0000:3b:00.0", "NODE"),
        ("0000:03:00.0", "0000:bb:00.0", "SYS"),
        ("0000:03:00.0", "0000:db:00.0", None),
        ("0000:db:00.0", "0000:da:00.0", "PHB"),
    ],
)
def test_distances_match_nvidia_smi(first: str, second: str, expected: Distance | None) -> None:
    assert distance(PLACES[first], PLACES[second]) == distance(PLACES[second], PLACES[first]) == expected


def test_what_is_below_an_inner_host_bridge_goes_through_the_root_complex() -> None:
    inner = ("pci0000:64", "0000:64:00.5", "pci10000:00")
    first, second = (Place((*inner, f"10000:00:0{port}.0"), 1) for port in (2, 4))
    assert distance(first, second) == "PHB"
    assert distance(first, Place((*first.path, "10000:01:00.0"), 1)) == "PIX"


def test_a_function_without_a_path_is_at_no_known_distance() -> None:
    assert distance(Place((), 0), PLACES["0000:3b:00.0"]) is None


def test_a_path_is_all_that_is_above_host_bridge_first() -> None:
    link = "../../../devices/platform/40000000.pcie/pci0000:00/0000:00:1c.0/0000:01:00.0"
    assert pci.path_of(link, "0000:01:00.0") == ("pci0000:00", "0000:00:1c.0")


@pytest.mark.parametrize(
    "link",
    [
        "",
        "0000:01:00.0",
        "../../../devices/pci0000:00",
        "../../../devices/pci0000:00/0000:00:1c.0",
        "../../../devices/pci0000:00/0000:01:00.0/0000:01:00.0",
        "../../../devices/pci0000:00/0000:00:1c.0/0000:00:1c.0/0000:01:00.0",
        "../../../devices/pci0000:00/usb1/0000:01:00.0",
        "../../../devices/pci0000:00/" + "".join(f"0000:{bus:02x}:00.0/" for bus in range(2, 40)) + "0000:01:00.0",
    ],
)
def test_a_link_that_leads_elsewhere_is_no_place(link: str) -> None:
    with pytest.raises(ParseError) as caught:
        pci.path_of(link, "0000:01:00.0")
    assert "\n" not in str(caught.value)
