"""PCI functions and their affinity."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from topowise_exporter.machine import Machine, PciFunction, pci_functions

HWLOC = Path(__file__).resolve().parents[3] / "machines/hwloc"

Read = Callable[[Path], Machine]


@pytest.fixture
def devices(small: Path) -> Path:
    return small / "sys/bus/pci/devices"


def _function(machine: Machine, address: str) -> PciFunction:
    return next(function for function in machine.pci if function.address == address)


def test_affinity_is_not_guessed_from_local_cpus(small: Path, devices: Path, read: Read) -> None:
    (devices / "0000:00:1f.0/local_cpulist").write_text("0-1,4-5\n")
    (devices / "0000:98:00.0/local_cpulist").write_text("\n")
    machine = read(small)
    assert _function(machine, "0000:00:1f.0").numa_node is None
    assert _function(machine, "0000:98:00.0").numa_node == 1


def test_a_function_that_is_no_link_is_listed_without_a_path(small: Path, devices: Path, read: Read) -> None:
    for address in ("0000:97:00.0", "0000:98:00.0"):
        (devices / address).unlink()
        (devices / address).mkdir()
        (devices / address / "numa_node").write_text("1\n")
    machine = read(small)
    paths = [(function.address, function.path) for function in machine.pci[1:3]]
    assert paths == [("0000:97:00.0", ()), ("0000:98:00.0", ())]
    assert machine.problems == (
        f"{devices}/0000:97:00.0: no link to its directory (and 1 more like it); the bridges above it are unknown",
    )


def test_a_loop_of_links_is_one_line(small: Path, devices: Path, read: Read) -> None:
    for address in ("0000:98:00.1", "0000:98:00.2"):
        (devices / address).unlink()
    (devices / "0000:98:00.1").symlink_to("0000:98:00.2")
    (devices / "0000:98:00.2").symlink_to("0000:98:00.1")
    machine = read(small)
    assert [_function(machine, address).path for address in ("0000:98:00.1", "0000:98:00.2")] == [(), ()]
    lines = [line for line in machine.problems if "the bridges above it" in line]
    assert lines == [
        f"{devices}/0000:98:00.1: link '0000:98:00.2': expected a path by a host bridge (pci0000:00) to 0000:98:00.1 "
        "(and 1 more like it); the bridges above it are unknown"
    ]


def test_a_name_that_is_no_address_is_left_out_and_reported_once(small: Path, devices: Path, read: Read) -> None:
    (devices / "usb1\n").symlink_to("nowhere")
    (devices / "zz:00.0").symlink_to("nowhere")
    machine = read(small)
    assert len(machine.pci) == 5
    assert machine.problems == (f"{devices}/usb1\\n: no PCI address (and 1 more like it); left out",)


def test_there_are_only_so_many_functions(
    small: Path, devices: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pci_functions, "MOST_FUNCTIONS", 2)
    machine = read(small)
    assert len(machine.pci) == 2
    assert machine.problems == (f"{devices}: 5 functions, expected at most 2; the rest is left out",)


@pytest.mark.parametrize("file", sorted(HWLOC.glob("*.json")), ids=lambda file: file.stem)
def test_what_is_above_is_what_hwloc_says(tmp_path: Path, small: Path, read: Read, file: Path) -> None:
    """hwloc takes it from the ranges of buses in the bridges' configuration space, the files name their source."""
    recorded = json.loads(file.read_text())
    shutil.rmtree(small / "sys/bus/pci/devices")
    (small / "sys/bus/pci/devices").mkdir()
    for address, link in recorded["links"].items():
        (small / "sys/bus/pci/devices" / address).symlink_to(link)
    paths = {function.address: list(function.path) for function in read(small).pci}
    assert paths.keys() == recorded["links"].keys()
    assert {address: paths[address] for address in recorded["above"]} == recorded["above"]


def test_a_missing_numa_node_is_no_affinity(small: Path, devices: Path, read: Read) -> None:
    (devices / "0000:98:00.0/numa_node").unlink()
    machine = read(small)
    assert _function(machine, "0000:98:00.0").numa_node is None
    assert machine.problems == (f"{devices}/0000:98:00.0/numa_node: missing; the function has no affinity",)


def test_a_kernel_without_numa_is_reported_once(small: Path, devices: Path, read: Read) -> None:
    for file in devices.glob("*/numa_node"):
        file.unlink()
    assert read(small).problems == (f"{devices}/*/numa_node: missing everywhere; no function has an affinity",)


def test_an_unknown_node_is_no_affinity(small: Path, devices: Path, read: Read) -> None:
    (devices / "0000:98:00.0/numa_node").write_text("7\n")
    machine = read(small)
    assert _function(machine, "0000:98:00.0").numa_node is None
    assert machine.problems == (f"{devices}/0000:98:00.0/numa_node: unknown node 7; the function has no affinity",)


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
