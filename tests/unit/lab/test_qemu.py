"""From a machine file to the command line of QEMU; and which files are refused before anything is started."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lab import machine, qemu
from lab.base import Base
from lab.errors import LabError
from lab.qemu import Disks, Ports

PORTS = Ports(ssh=21001, kubelet=21002, agent=21003)


def command(spec: machine.Machine, accel: str = "tcg") -> list[str]:
    disks = Disks(Path("/run/own.qcow2"), Path("/run/shared"))
    return qemu.command(spec, Base(Path("/base")), disks, PORTS, Path("/run"), accel)


def values(words: list[str], option: str) -> list[str]:
    return [value for word, value in itertools.pairwise(words) if word == option]


def written(folder: Path, text: str) -> str:
    path = folder / "machine.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", [path.stem for path in sorted(machine.MACHINES.glob("*.yaml"))])
def test_every_machine_of_the_project_can_be_built(name: str) -> None:
    spec = machine.read(name)
    words = command(spec)
    assert words[0] == "qemu-system-x86_64"
    assert values(words, "-name") == [name]
    assert len([value for value in values(words, "-numa") if value.startswith("node,")]) == len(spec.nodes)


def test_sockets_and_numa_nodes_are_as_the_file_says() -> None:
    words = command(machine.read("dual"))
    assert values(words, "-smp") == ["12,sockets=2,dies=1,cores=3,threads=2"]
    assert values(words, "-m") == ["5120M"]
    assert values(words, "-numa") == [
        "node,nodeid=0,memdev=memory0",
        "node,nodeid=1,memdev=memory1",
        "cpu,node-id=0,socket-id=0",
        "cpu,node-id=1,socket-id=1",
        "dist,src=0,dst=1,val=21",
        "dist,src=1,dst=0,val=21",
    ]


def test_dies_are_named_where_a_socket_has_several() -> None:
    cpus = [value for value in values(command(machine.read("quad")), "-numa") if value.startswith("cpu,")]
    assert cpus[1] == "cpu,node-id=1,socket-id=0,die-id=1"


def test_a_node_of_memory_alone_has_memory_and_distances_and_no_cpus() -> None:
    numa = values(command(machine.read("memory")), "-numa")
    assert "node,nodeid=2,memdev=memory2" in numa
    assert "dist,src=0,dst=2,val=17" in numa
    assert not [value for value in numa if value.startswith("cpu,node-id=2")]


def test_functions_hang_on_a_root_complex_of_their_node() -> None:
    devices = values(command(machine.read("dual")), "-device")
    assert "pxb-pcie,id=root1,bus=pcie.0,bus_nr=32,numa_node=1,addr=0x11" in devices
    assert "pcie-root-port,id=port1-0,bus=root1,chassis=4,slot=4,addr=0x0" in devices
    assert "virtio-net-pci,bus=port1-0,mac=52:54:00:bb:01:00,romfile=" in devices
    assert "bochs-display,bus=port1-1" in devices


def test_chassis_are_unique_on_the_machine() -> None:
    ports = [value for value in values(command(machine.read("dual")), "-device") if value.startswith("pcie-root-port")]
    numbers = [word for port in ports for word in port.split(",") if word.startswith("chassis=")]
    assert len(numbers) == len(set(numbers)) == 5


def test_huge_pages_are_given_to_the_kernel_by_node(tmp_path: Path) -> None:
    text = "nodes: [{memory: 4096, socket: 0, hugepages1Gi: 1, hugepages2Mi: 8}, {memory: 512}]"
    (line,) = values(command(machine.read(written(tmp_path, text))), "-append")
    assert "hugepagesz=1G hugepages=0:1" in line
    assert "hugepagesz=2M hugepages=0:8" in line


def test_a_guest_is_reached_on_loopback_alone() -> None:
    (network,) = values(command(machine.read("dual")), "-netdev")
    forwards = [word for word in network.split(",") if word.startswith("hostfwd")]
    assert forwards == [
        "hostfwd=tcp:127.0.0.1:21001-:22",
        "hostfwd=tcp:127.0.0.1:21002-:10250",
        "hostfwd=tcp:127.0.0.1:21003-:9999",
    ]


def test_kvm_is_taken_where_the_processor_has_it_and_the_device_may_be_used(tmp_path: Path) -> None:
    device, flags = tmp_path / "kvm", tmp_path / "cpuinfo"
    device.touch()
    flags.write_text("flags : fpu vmx sse\n")
    assert qemu.accelerator(str(device), flags) == "kvm"
    flags.write_text("flags : fpu sse\n")
    assert qemu.accelerator(str(device), flags) == "tcg"
    assert qemu.accelerator(str(tmp_path / "none"), flags) == "tcg"


@pytest.mark.parametrize(
    "text, problem",
    [
        ("nodes: []", "length >= 1"),
        ("nodes: [{memory: 512, socket: 0}]\ncolour: red", "colour"),
        ("nodes: [{memory: 512, socket: 1}]", r"nodes are on \[\(1, 0\)\]"),
        ("sockets: 2\nnodes: [{memory: 512, socket: 0}]", r"CPUs of \[\(1, 0\)\] are on no node"),
        ("nodes: [{memory: 512, socket: 0}, {memory: 512, socket: 0}]", "two nodes are on one die"),
        ("nodes: [{memory: 512, socket: 0}]\ndistances: [[10, 20]]", "expected 1 rows of 1"),
        ("nodes: [{memory: 512, socket: 0}]\ndistances: [[11]]", "another distance than 10 to itself"),
        ("nodes: [{memory: 512, socket: 0, pci: [toaster]}]", "'toaster', expected one of"),
        ("nodes: [{memory: 64, socket: 0, hugepages2Mi: 32}]", "more huge pages than memory"),
        ("nodes: [{memory: 512, socket: 0}]\ndevices: [{resource: a/b}]", "expected either pciClass or near"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(LabError, match=problem) as caught:
        machine.read(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_an_unknown_machine_is_answered_with_the_known_machines() -> None:
    with pytest.raises(LabError, match="expected a machine file or dual, duo, memory, octo, p5, quad"):
        machine.read("toaster")
