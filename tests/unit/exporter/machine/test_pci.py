"""PCI functions and their affinity."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import machines
from topowise_exporter.machine import Machine, PciFunction, report

Read = Callable[[Path], Machine]


@pytest.fixture
def devices(small: Path) -> Path:
    return small / "sys/bus/pci/devices"


def _function(machine: Machine, address: str) -> PciFunction:
    return next(function for function in machine.pci if function.address == address)


def test_no_affinity_is_none_and_is_printed_as_the_kernel_does(small: Path, read: Read) -> None:
    machine = read(small)
    assert _function(machine, "0000:00:1f.0").numa_node is None
    assert report(machine)["pci"][0]["numa_node"] == -1  # type: ignore[index,call-overload]


def test_affinity_is_not_guessed_from_local_cpus(small: Path, devices: Path, read: Read) -> None:
    (devices / "0000:00:1f.0/local_cpulist").write_text("0-1,4-5\n")
    (devices / "0000:98:00.0/local_cpulist").write_text("\n")
    machine = read(small)
    assert _function(machine, "0000:00:1f.0").numa_node is None
    assert _function(machine, "0000:98:00.0").numa_node == 1


def test_virtual_functions_point_at_the_physical_one_which_counts_them(small: Path, read: Read) -> None:
    machine = read(small)
    assert _function(machine, "0000:98:00.0").virtfns == 2
    for address in ("0000:98:00.1", "0000:98:00.2"):
        function = _function(machine, address)
        assert (function.physfn, function.numa_node, function.virtfns) == ("0000:98:00.0", 1, 0)


def test_host_bridge_and_root_port_are_told(small: Path, read: Read) -> None:
    machine = read(small)
    assert [(function.address, function.pcie_root, function.root_port) for function in machine.pci[:3]] == [
        ("0000:00:1f.0", "pci0000:00", None),
        ("0000:97:00.0", "pci0000:97", None),
        ("0000:98:00.0", "pci0000:97", "0000:97:00.0"),
    ]


def test_a_missing_numa_node_is_no_affinity(small: Path, devices: Path, read: Read) -> None:
    (devices / "0000:98:00.0/numa_node").unlink()
    machine = read(small)
    assert _function(machine, "0000:98:00.0").numa_node is None
    assert machine.problems == (f"{devices}/0000:98:00.0/numa_node: missing; the function has no affinity",)


def test_a_kernel_without_numa_is_told_once(small: Path, devices: Path, read: Read) -> None:
    for file in devices.glob("*/numa_node"):
        file.unlink()
    assert read(small).problems == (f"{devices}/*/numa_node: missing everywhere; no function has an affinity",)


def test_an_unknown_node_is_no_affinity(small: Path, devices: Path, read: Read) -> None:
    (devices / "0000:98:00.0/numa_node").write_text("7\n")
    machine = read(small)
    assert _function(machine, "0000:98:00.0").numa_node is None
    assert machine.problems == (f"{devices}/0000:98:00.0/numa_node: unknown node 7; the function has no affinity",)


def test_domains_of_five_digits_come_after_those_of_four(tmp_path: Path, read: Read) -> None:
    addresses = ("10000:00:04.0", "0000:00:1f.0", "0002:00:00.0")
    functions = tuple(machines.Pci(address, 0, "0x010802", "0x8086", "0x0a54") for address in addresses)
    node = machines.Node(0, machines.GIB, cores=1)
    machines.write_tree(machines.Machine(nodes=(node,), distances=((10,),), pci=functions), tmp_path)
    found = [function.address for function in read(tmp_path).pci]
    assert found == ["0000:00:1f.0", "0002:00:00.0", "10000:00:04.0"]


def test_a_machine_may_have_no_pci(small: Path, read: Read) -> None:
    shutil.rmtree(small / "sys/bus/pci")
    machine = read(small)
    assert machine.pci == ()
    assert machine.problems == ()


def test_a_function_without_driver_or_attributes_is_listed(small: Path, devices: Path, read: Read) -> None:
    for name in ("class", "vendor", "device", "driver"):
        (devices / "0000:98:00.0" / name).unlink()
    function = _function(read(small), "0000:98:00.0")
    assert (function.class_code, function.vendor, function.device, function.driver) == ("", "", "", None)
