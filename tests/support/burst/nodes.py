"""Nodes of every size, policy, scope and option that changes what fits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any, Final

import msgspec

from sandbox import machines
from sandbox.machines import GIB, PAGE_1G, PAGE_2M, Machine, Node, Pci, gpu, nic
from topowise.kubeletconfig import KubeletConfiguration


class Kind(msgspec.Struct, frozen=True):
    """A machine with the settings of its kubelet."""

    machine: Machine
    config: KubeletConfiguration


def _machine(zones: int, cores: int, gib: int, *, sockets: int = 2, pages: dict[int, int] | None = None) -> Machine:
    """Hyper-threaded; every second zone has a GPU, every first a NIC with virtual functions."""
    per_socket = max(1, zones // sockets)
    nodes = tuple(
        # Uneven hugepages: a zone that looks as free as its neighbour is not as good.
        Node(
            zone,
            gib * GIB,
            socket=zone // per_socket,
            cores=cores,
            hugepages={size: count if zone % 2 == 0 else count // 2 for size, count in (pages or {}).items()},
        )
        for zone in range(zones)
    )
    distances = tuple(
        tuple(10 if a == b else 12 if a // per_socket == b // per_socket else 21 for b in range(zones))
        for a in range(zones)
    )
    pci: list[Pci] = []
    for zone in range(zones):
        bus = 0x18 + 0x10 * zone
        if zone % 2 == 0:
            pci += nic(f"0000:{bus:02x}:00.0", zone, f"0000:{bus - 1:02x}:00.0", virtual_functions=4)
        else:
            pci += gpu(f"0000:{bus:02x}:00.0", zone, f"0000:{bus - 1:02x}:00.0")
            pci += gpu(f"0000:{bus + 4:02x}:00.0", zone, f"0000:{bus + 3:02x}:00.0")
    return Machine(nodes, distances, pci=tuple(pci))


def _config(machine: Machine, policy: str, scope: str = "container", **more: Any) -> KubeletConfiguration:
    """A core and 1 GiB on each of the first two zones are the system's, which the memory manager wants to be told."""
    first_core = machines.layout(machine)[0].threads
    first, second = machine.nodes[:2]
    settings: dict[str, Any] = {
        "topologyManagerPolicy": policy,
        "topologyManagerScope": scope,
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": ",".join(map(str, first_core)),
        "memoryManagerPolicy": "Static",
        "systemReserved": {"memory": "1948Mi"},
        "evictionHard": {"memory.available": "100Mi"},
        "reservedMemory": [
            {"numaNode": first.id, "limits": {"memory": "1Gi"}},
            {"numaNode": second.id, "limits": {"memory": "1Gi"}},
        ],
    } | more
    if settings["memoryManagerPolicy"] == "None":
        del settings["reservedMemory"]
    return msgspec.convert(settings, KubeletConfiguration)


_FULL: Final[dict[str, Any]] = {"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}
_SMALL: Final = _machine(2, 4, 24, pages={PAGE_2M: 1024})
_WIDE: Final = _machine(2, 12, 64, pages={PAGE_2M: 1024, PAGE_1G: 4})
_SNC: Final = _machine(4, 4, 24, pages={PAGE_2M: 512})
_MIDDLE: Final = _machine(4, 8, 48, pages={PAGE_2M: 1024})
_LARGE: Final = _machine(8, 8, 48, pages={PAGE_2M: 1024})

KINDS: Final[dict[str, Kind]] = {
    "small-single": Kind(_SMALL, _config(_SMALL, "single-numa-node", **_FULL)),
    "snc-restricted": Kind(_SNC, _config(_SNC, "restricted")),
    "large-single-pod": Kind(_LARGE, _config(_LARGE, "single-numa-node", "pod")),
    "wide-best-effort": Kind(_WIDE, _config(_WIDE, "best-effort", memoryManagerPolicy="None")),
    "middle-none": Kind(_MIDDLE, _config(_MIDDLE, "none")),
    "small-single-pod": Kind(_SMALL, _config(_SMALL, "single-numa-node", "pod", memoryManagerPolicy="None")),
    "middle-restricted-pod": Kind(
        _MIDDLE,
        _config(
            _MIDDLE, "restricted", "pod", topologyManagerPolicyOptions={"prefer-closest-numa-nodes": "true"}, **_FULL
        ),
    ),
    "wide-single": Kind(_WIDE, _config(_WIDE, "single-numa-node", memoryManagerPolicy="None", **_FULL)),
    "snc-best-effort-pod": Kind(_SNC, _config(_SNC, "best-effort", "pod")),
    "middle-distributed": Kind(
        _MIDDLE, _config(_MIDDLE, "restricted", cpuManagerPolicyOptions={"distribute-cpus-across-numa": "true"})
    ),
}


def nodes(count: int) -> Iterator[tuple[str, Kind]]:
    """Names and kinds, the kinds in turn."""
    for number, (name, kind) in zip(range(count), cycle(KINDS.items()), strict=False):
        yield f"{name}-{number:02d}", kind
