"""A machine file: the hardware of a node, the configuration of its kubelet, and its device plug-ins.

Invariant: a machine that was read can be shown to a kubelet. `read` refuses what the kubelet would refuse minutes
later.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from lab.api import LabError
from topowise import cpuset

MACHINES: Final = Path(__file__).with_name("machines")
# The Topology Manager's default limit (maxAllowableNUMANodes).
MOST_NODES: Final = 8
# A root complex has eight buses for functions of device plug-ins.
_MOST_FUNCTIONS: Final = 8

Positive = Annotated[int, msgspec.Meta(ge=1)]


class NumaNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """`memory` in MiB; without a `socket` it is memory alone. `pci` are the functions behind its own root complex."""

    memory: Positive
    socket: int | None = None
    die: int = 0
    hugepages_2mi: int = msgspec.field(default=0, name="hugepages2Mi")
    pci: tuple[str, ...] = ()


class Devices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The devices of a device plug-in: the functions of a PCI class, or emulated devices.

    A key of `near` is a list of NUMA nodes ("0", "0,1", or "" for no NUMA node), its value the number of devices.
    """

    resource: str
    pci_class: str = ""
    near: dict[str, int] = {}


class Claimed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The devices of a DRA driver: the number of display controllers by NUMA node."""

    driver: str
    near: dict[int, Positive]


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """`kubelet` are fields of KubeletConfiguration; what they leave out is in `lab.kubelet`. `copy` counts the nodes
    that are this machine, from 1."""

    nodes: Annotated[tuple[NumaNode, ...], msgspec.Meta(min_length=1, max_length=MOST_NODES)]
    sockets: Positive = 1
    dies: Positive = 1
    cores: Positive = 1
    threads: Positive = 1
    distances: tuple[tuple[int, ...], ...] = ()
    devices: tuple[Devices, ...] = ()
    claims: Claimed | None = None
    kubelet: dict[str, Any] = {}
    name: str = ""
    copy: Positive = 1

    @property
    def cpus(self) -> int:
        """Of all sockets."""
        return self.sockets * self.dies * self.cores * self.threads

    @property
    def distance(self) -> tuple[tuple[int, ...], ...]:
        """From node to node; 20 between any two where nothing is said."""
        everyone = range(len(self.nodes))
        return self.distances or tuple(
            tuple(10 if node == neighbour else 20 for neighbour in everyone) for node in everyone
        )


FUNCTIONS: Final = ("network", "display")


def read(name: str) -> Machine:
    """Returns the machine of this name in hack/lab/machines, or of a file; `dual-2` is a second `dual`. Raises
    LabError."""
    kind, _, number = name.rpartition("-")
    copy = int(number) if kind and number.isdecimal() and int(number) > 1 else 1
    path = Path(name) if name.endswith(".yaml") else MACHINES / f"{kind if copy > 1 else name}.yaml"
    try:
        machine = msgspec.yaml.decode(path.read_bytes(), type=Machine)
    except FileNotFoundError:
        there = ", ".join(sorted(file.stem for file in MACHINES.glob("*.yaml")))
        raise LabError(f"{path} does not exist, expected a machine file or {there}") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as exc:
        raise LabError(f"{path} cannot be read: {exc}") from exc
    for problem in problems(machine):
        raise LabError(f"{path}: {problem}")
    return msgspec.structs.replace(machine, name=path.stem if copy == 1 else name, copy=copy)


def problems(machine: Machine) -> Iterable[str]:
    """Yields the reasons why the machine cannot be built."""
    count = len(machine.nodes)
    homes = [(node.socket, node.die) for node in machine.nodes if node.socket is not None]
    dies = {(socket, die) for socket in range(machine.sockets) for die in range(machine.dies)}
    if set(homes) - dies:
        yield f"nodes are on {sorted(set(homes) - dies)}, expected sockets and dies of {sorted(dies)}"
    if dies - set(homes):
        yield f"CPUs of {sorted(dies - set(homes))} are on no node, expected every socket and die on one"
    if len(homes) != len(set(homes)):
        yield "two nodes are on one die, expected a die for each; more dies make smaller nodes"
    if machine.distances and [len(row) for row in machine.distances] != [count] * count:
        yield f"distances are {[len(row) for row in machine.distances]} wide, expected {count} rows of {count}"
    elif any(machine.distances[node][node] != 10 for node in range(count) if machine.distances):
        yield "a node has another distance than 10 to itself"
    for place, node in enumerate(machine.nodes):
        yield from (
            f"node {place} has {function!r}, expected one of {FUNCTIONS}"
            for function in node.pci
            if function not in FUNCTIONS
        )
        if len(node.pci) > _MOST_FUNCTIONS:
            yield f"node {place} has {len(node.pci)} PCI functions, expected {_MOST_FUNCTIONS} at most"
        if node.hugepages_2mi * 2 >= node.memory:
            yield f"node {place} has more huge pages than memory"
    if machine.claims and (outside := set(machine.claims.near) - set(range(count))):
        yield f"devices of claims are near {sorted(outside)}, expected NUMA nodes below {count}"
    for plugin in machine.devices:
        if bool(plugin.pci_class) == bool(plugin.near):
            fields = f"pciClass {plugin.pci_class!r} and near {plugin.near}"
            yield f"devices {plugin.resource!r} have {fields}, expected either pciClass or near"


Json = dict[str, Any]

# MiB for the system on each node, and below which memory the kubelet evicts. Both must add up to the reserved memory.
_SYSTEM: Final = 100
_EVICT: Final = 100
STATIC_PODS: Final = "/etc/kubernetes/manifests"
CONFIG: Final = "/var/lib/kubelet/config.yaml"
KUBECONFIG: Final = "/etc/kubernetes/kubelet.kubeconfig"
SOCKET: Final = "/var/lib/kubelet/cri.sock"
"""The socket of the container runtime."""


def configuration(machine: Machine, port: int, changed: Json | None = None) -> Json:
    """Returns KubeletConfiguration: the lab's, then the machine's, then what a test has changed."""
    own = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # It listens on loopback alone.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": "127.0.0.1",
        "port": port,
        "healthzPort": 0,
        "readOnlyPort": 0,
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        # A node has no cgroups of its own, and changes nothing of this machine.
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": ["none"],
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "protectKernelDefaults": True,
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "localStorageCapacityIsolation": False,
        "resolvConf": "",
        "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "10s",
        "imageGCHighThresholdPercent": 100,
        "cpuManagerPolicy": "static",
        "cpuManagerReconcilePeriod": "1s",
        "memoryManagerPolicy": "Static",
        "topologyManagerScope": "container",
        "reservedSystemCPUs": "0",
        "staticPodPath": STATIC_PODS,
        "systemReserved": {"memory": f"{_SYSTEM * len(machine.nodes)}Mi"},
        "evictionHard": {"memory.available": f"{_EVICT}Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        **machine.kubelet,
        **(changed or {}),
    }
    if own["memoryManagerPolicy"] == "Static":
        own["reservedMemory"] = _reserved(len(machine.nodes))
    return own


def _reserved(nodes: int) -> list[Json]:
    """Returns the reserved memory by NUMA node: the system's share, and the eviction threshold on node 0."""
    sizes = [_SYSTEM + (_EVICT if node == 0 else 0) for node in range(nodes)]
    return [{"numaNode": node, "limits": {"memory": f"{size}Mi"}} for node, size in enumerate(sizes)]


def reserved_cpus(configured: Json) -> frozenset[int]:
    """Returns the CPUs that no pod gets exclusively."""
    return cpuset.parse(str(configured.get("reservedSystemCPUs", "")))


def kubeconfig(port: int, certificate: bytes, token: str) -> Json:
    """Returns a kubeconfig that names the Service, which the certificate is for, in place of the address."""
    cluster = {
        "server": f"https://127.0.0.1:{port}",
        "certificate-authority-data": base64.b64encode(certificate).decode(),
        "tls-server-name": "kubernetes",
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "lab", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": "lab",
    }
