"""Makes the command line of QEMU from a machine.

QEMU emulates sockets, dies and NUMA nodes. A device gets its NUMA node from its root complex, so each node with devices
has an own root complex (pxb-pcie). Without KVM, or where KVM would emulate every instruction, TCG runs the guest;
`_kernel_line` makes TCG bearable by skipping every probe, measurement and test that the lab does not need.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lab.base import Base
from lab.machine import Machine

PROGRAM: Final = "qemu-system-x86_64"
# What rootfs/usr/local/sbin/lab-network looks for.
_OWN_ADDRESS: Final = "52:54:00:aa:00:01"
_TCG: Final = "tcg,thread=multi,tb-size=512"
_CPU: Final = {
    # The kernel takes topology and cache from Intel's leaves; five-level paging costs a level of every walk.
    "tcg": "max,vendor=GenuineIntel,la57=off,l3-cache=on,invtsc=on",
    "kvm": "host,l3-cache=on",
}
_DEVICES: Final = {"network": "virtio-net-pci", "display": "bochs-display"}


class Ports(NamedTuple):
    """Of this machine's loopback, by which a guest is reached."""

    ssh: int
    kubelet: int
    agent: int


class Disks(NamedTuple):
    """The guest's own disk, and the disk that all guests share: kubelet and images."""

    own: Path
    shared: Path


def accelerator(kvm: str = "/dev/kvm", flags: Path = Path("/proc/cpuinfo")) -> str:
    """Returns "kvm" if the processor has virtualisation, else "tcg"; /dev/kvm alone may emulate every instruction."""
    try:
        has_it = {"vmx", "svm"} & set(flags.read_text().split())
    except OSError:
        has_it = set()
    return "kvm" if has_it and os.access(kvm, os.R_OK | os.W_OK) else "tcg"


def command(machine: Machine, base: Base, disks: Disks, ports: Ports, work: Path, accel: str) -> list[str]:
    """Returns QEMU's command line; `work` gets the serial console's log."""
    return [
        PROGRAM,
        *("-name", machine.name),
        *("-machine", "q35"),
        *("-accel", _TCG if accel == "tcg" else accel),
        *("-cpu", _CPU[accel]),
        *("-smp", _smp(machine)),
        *("-m", f"{sum(node.memory for node in machine.nodes)}M"),
        *("-kernel", str(base.kernel)),
        *("-initrd", str(base.initrd)),
        *("-append", _kernel_line(machine)),
        *("-display", "none", "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-serial", f"file:{work / machine.name}.serial.log"),
        *_drive("vda", f"file={disks.own},cache=unsafe,discard=unmap", 3),
        *_drive("vdb", f"file={disks.shared},format=raw,readonly=on", 4),
        *("-netdev", _network(ports)),
        *("-device", f"virtio-net-pci,netdev=own,mac={_OWN_ADDRESS},addr=0x5,romfile="),
        *("-device", "virtio-rng-pci,addr=0x6"),
        *_numa(machine),
        *_pci(machine),
    ]


def _smp(machine: Machine) -> str:
    named = (
        ("sockets", machine.sockets),
        ("dies", machine.dies),
        ("cores", machine.cores),
        ("threads", machine.threads),
    )
    return ",".join((str(machine.cpus), *(f"{name}={count}" for name, count in named)))


def _drive(name: str, source: str, slot: int) -> Sequence[str]:
    return ("-drive", f"{source},if=none,id={name}", "-device", f"virtio-blk-pci,drive={name},addr={slot:#x}")


def _network(ports: Ports) -> str:
    """User-mode: a guest sees this machine as 10.0.2.2 and nothing else of the world."""
    forwards = ((ports.ssh, 22), (ports.kubelet, 10250), (ports.agent, 9999))
    return ",".join(("user,id=own,ipv6=off", *(f"hostfwd=tcp:127.0.0.1:{here}-:{there}" for here, there in forwards)))


def _kernel_line(machine: Machine) -> str:
    words = [
        "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet systemd.show_status=0",
        "nokaslr tsc=reliable clocksource=tsc no_timer_check nowatchdog lpj=10384000 cryptomgr.notests init_on_alloc=0",
        "mitigations=off",
        f"systemd.hostname={machine.name}",
        f"systemd.machine_id={hashlib.md5(machine.name.encode(), usedforsecurity=False).hexdigest()}",
    ]
    for size, counts in (
        ("1G", [node.hugepages_1gi for node in machine.nodes]),
        ("2M", [node.hugepages_2mi for node in machine.nodes]),
    ):
        if any(counts):
            listed = ",".join(f"{node}:{count}" for node, count in enumerate(counts) if count)
            words.append(f"hugepagesz={size} hugepages={listed}")
    return " ".join(words)


def _numa(machine: Machine) -> Iterator[str]:
    for place, node in enumerate(machine.nodes):
        yield from ("-object", f"memory-backend-ram,id=memory{place},size={node.memory}M")
        yield from ("-numa", f"node,nodeid={place},memdev=memory{place}")
    for place, node in enumerate(machine.nodes):
        if node.socket is not None:
            die = f",die-id={node.die}" if machine.dies > 1 else ""
            yield from ("-numa", f"cpu,node-id={place},socket-id={node.socket}{die}")
    for source, row in enumerate(machine.distance):
        for target, distance in enumerate(row):
            if source != target:
                yield from ("-numa", f"dist,src={source},dst={target},val={distance}")


def _pci(machine: Machine) -> Iterator[str]:
    """Returns a root complex for each node with functions, and a root port for each function."""
    chassis = 0
    for place, node in enumerate(machine.nodes):
        if not node.pci:
            continue
        first_bus, slot = 0x10 * (place + 1), 0x10 + place
        yield from (
            "-device",
            f"pxb-pcie,id=root{place},bus=pcie.0,bus_nr={first_bus},numa_node={place},addr={slot:#x}",
        )
        for port, kind in enumerate(node.pci):
            chassis += 1
            own = f"port{place}-{port}"
            numbers = f"chassis={chassis},slot={chassis},addr={port:#x}"
            yield from ("-device", f"pcie-root-port,id={own},bus=root{place},{numbers}")
            more = f",mac=52:54:00:bb:{place:02x}:{port:02x},romfile=" if kind == "network" else ""
            yield from ("-device", f"{_DEVICES[kind]},bus={own}{more}")
