"""The nodes that NodeResourceTopologyMatch was shown, each for something that it reads or stumbles over."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from conversations import Scene, pod, question
from sandbox import machines
from sandbox.machines import GIB, PAGE_1G, PAGE_2M, Machine, Node, gpu
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.publish.topology import Publishing

GPU: Final = "nvidia.com/gpu"
STRICT: Final = KubeletConfiguration(
    topologyManagerPolicy="single-numa-node",
    topologyManagerScope="container",
    cpuManagerPolicy="static",
    memoryManagerPolicy="Static",
    reservedSystemCPUs="0",
    reservedMemory=(MemoryReservation(numaNode=0, limits={"memory": "1Gi"}),),
    systemReserved={"memory": "924Mi"},
    evictionHard={"memory.available": "100Mi"},
)


def _changed(**more: Any) -> KubeletConfiguration:
    return msgspec.structs.replace(STRICT, **more)


# Pods of every phase; the kubelet has the running pods.
ALL_KINDS: Final = (
    pod("pinned", {"cpu": "4", "memory": "4Gi"}),
    pod("two", {"cpu": "2", "memory": "2Gi"}, {"cpu": "3", "memory": "2Gi"}),
    pod("fraction", {"cpu": "1500m", "memory": "1Gi"}),
    pod("pages", {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "512Mi"}),
    pod("burst", {"cpu": "1", "memory": "1Gi"}, limits=False),
    pod("nothing", {}),
    pod("device", {GPU: "1"}),
    pod("half", {"cpu": "2", "memory": "1Gi"}, {"cpu": "500m", "memory": "1Gi"}),
    pod("sidecar", {"cpu": "1", "memory": "1Gi"}, sidecars=({"cpu": "1", "memory": "1Gi"},)),
    pod("prepared", {"cpu": "500m", "memory": "1Gi"}, init=({"cpu": "2", "memory": "1Gi"},)),
    pod("leaving", {"cpu": "1", "memory": "1Gi"}, terminating=True),
    pod("static-metal", {"cpu": "250m", "memory": "128Mi"}, namespace="kube-system", static=True),
)
ASKED: Final = (
    question("small", {"cpu": "2", "memory": "1Gi"}),
    question("wide", {"cpu": "20", "memory": "1Gi"}),
    question("heavy", {"cpu": "1", "memory": "80Gi"}),
    question("fractional", {"cpu": "500m", "memory": "1Gi"}),
    question("burstable", {"cpu": "1", "memory": "1Gi"}, limits=False),
    question("best-effort", {}),
    question("with-pages", {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "1Gi"}),
    question("with-big-pages", {"cpu": "1", "memory": "1Gi", "hugepages-1Gi": "1Gi"}),
    question("with-gpu", {"cpu": "1", "memory": "1Gi", GPU: "1"}),
    question("pair", {"cpu": "8", "memory": "1Gi"}, {"cpu": "12", "memory": "1Gi"}),
)


def _plain(*ids: int, cores: int = 4, hugepages: dict[int, int] | None = None) -> Machine:
    """Nodes of the same size, 21 apart."""
    return Machine(
        nodes=tuple(
            Node(numa_id, 16 * GIB, socket=rank, cores=cores, hugepages=hugepages or {})
            for rank, numa_id in enumerate(ids)
        ),
        distances=tuple(tuple(10 if zone == neighbour else 21 for neighbour in ids) for zone in ids),
    )


_ONE_AFAR: Final = Machine(
    nodes=(Node(0, 32 * GIB, cores=8), Node(1, 32 * GIB, socket=1, cores=8)),
    distances=((10, 21), (21, 10)),
    pci=(
        *gpu("0000:3b:00.0", 0, "0000:3a:00.0"),
        *gpu("0000:bb:00.0", None, "0000:ba:00.0"),
    ),
)

_ONE_POD: Final = (pod("pinned", {"cpu": "4", "memory": "4Gi"}),)
_SMALL: Final = _changed(
    memoryManagerPolicy="None", reservedMemory=(), reservedSystemCPUs="", systemReserved={"cpu": "100m"}
)
_TINY: Final = (
    question("tiny", {"cpu": "100m", "memory": "10Mi"}),
    question("burstable", {"cpu": "100m", "memory": "10Mi"}, limits=False),
    question("with-pages", {"cpu": "100m", "memory": "10Mi", "hugepages-2Mi": "2Mi"}),
)

SCENES: Final[dict[str, Scene]] = {
    "every-kind-of-pod": Scene(machines.two_socket, STRICT, ALL_KINDS, ASKED),
    "every-kind-of-pod-all-counted": Scene(
        machines.two_socket, STRICT, ALL_KINDS, ASKED, publishing=Publishing(fingerprint_method="all")
    ),
    "a-pod-is-starting": Scene(
        machines.two_socket, STRICT, (*ALL_KINDS, pod("starting", {"cpu": "1", "memory": "1Gi"}, phase="Pending"))
    ),
    "pods-have-ended": Scene(
        machines.two_socket,
        STRICT,
        (
            *ALL_KINDS,
            pod("done", {"cpu": "1", "memory": "1Gi"}, phase="Succeeded"),
            pod("broken", {"cpu": "1", "memory": "1Gi"}, phase="Failed"),
        ),
    ),
    "pod-scope": Scene(machines.four_node_snc, _changed(topologyManagerScope="pod"), ALL_KINDS[:5], ASKED),
    "memory-only-node": Scene(machines.two_node_cxl, STRICT, ALL_KINDS[:5], ASKED),
    "managers-off": Scene(
        machines.two_socket,
        _changed(cpuManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=()),
        ALL_KINDS,
        ASKED,
    ),
    "memory-manager-off": Scene(
        machines.two_socket, _changed(memoryManagerPolicy="None", reservedMemory=()), ALL_KINDS, ASKED
    ),
    "memory-left-out": Scene(
        machines.two_socket, STRICT, ALL_KINDS, ASKED[:4], excluded=Exclusions(resources=("memory",))
    ),
    "device-without-a-node": Scene(
        _ONE_AFAR,
        _changed(topologyManagerPolicy="best-effort"),
        (pod("near", {GPU: "1"}), pod("far", {GPU: "1"}), pod("pinned", {"cpu": "2", "memory": "1Gi"})),
        (question("with-gpu", {"cpu": "1", "memory": "1Gi", GPU: "1"}),),
    ),
    "restricted": Scene(machines.four_node_uneven, _changed(topologyManagerPolicy="restricted"), ALL_KINDS[:5], ASKED),
    "ids-with-a-gap": Scene(
        _plain(0, 8, hugepages={PAGE_2M: 512, PAGE_1G: 2}),
        STRICT,
        (pod("pinned", {"cpu": "4", "memory": "4Gi"}),),
        ASKED,
    ),
    "ids-with-a-gap-any-policy": Scene(
        _plain(0, 8), _changed(topologyManagerPolicy="none"), (pod("pinned", {"cpu": "4", "memory": "4Gi"}),), ASKED
    ),
    "id-63": Scene(_plain(0, 63), STRICT, _ONE_POD, ASKED[:5]),
    "id-63-any-policy": Scene(_plain(0, 63), _changed(topologyManagerPolicy="restricted"), _ONE_POD, ASKED[:1]),
    "id-64": Scene(
        _plain(0, 64),
        _changed(topologyManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=()),
        _ONE_POD,
        ASKED[:1],
    ),
    "gpu-memory-nodes": Scene(
        "2c-smt4-gpu-memory-nodes",
        _changed(topologyManagerPolicy="none", memoryManagerPolicy="None", reservedMemory=()),
        (pod("pinned", {"cpu": "2", "memory": "1Gi"}),),
        ASKED[:2],
    ),
    "hugepages-on-one-node": Scene("2c-hugepages-on-one-node", _SMALL, (), _TINY),
    # What we do not publish, and why.
    "gap-without-placeholders": Scene(_plain(0, 8), STRICT, _ONE_POD, ASKED[:1], has_gaps=True),
    "zone-named-64": Scene(_plain(0, 1), STRICT, _ONE_POD, ASKED[:1], instead=("node-1", "node-64")),
    "no-memory-in-any-zone": Scene(
        _plain(0, 1), STRICT, _ONE_POD, ASKED[:1], excluded=Exclusions(resources=("memory", "hugepages-*"))
    ),
    "no-costs": Scene(_plain(0, 1), STRICT, _ONE_POD, ASKED[:1], instead=('"costs"', '"prices"')),
    "no-zones": Scene(_plain(0, 1), STRICT, _ONE_POD, ASKED[:1], instead=('"type":"Node"', '"type":"Socket"')),
}
