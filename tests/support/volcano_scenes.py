"""The nodes that Volcano's numa-aware plugin was shown, and what it was asked."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from conversations import Scene, pod, question
from sandbox import machines
from sandbox.machines import GIB, Machine, Node
from topowise.kubeletconfig import KubeletConfiguration

_STATIC: Final = KubeletConfiguration(
    topologyManagerPolicy="single-numa-node", cpuManagerPolicy="static", reservedSystemCPUs="0"
)
POLICY: Final = "volcano.sh/numa-topology-policy"


def _with(**more: Any) -> KubeletConfiguration:
    return msgspec.structs.replace(_STATIC, **more)


def _asked(name: str, policy: str, *containers: dict[str, str]) -> dict[str, Any]:
    manifest = question(name, *containers)
    if policy:
        manifest["metadata"]["annotations"] = {POLICY: policy}
    return manifest


def _questions(policy: str) -> tuple[dict[str, Any], ...]:
    return (
        _asked("small", policy, {"cpu": "2", "memory": "1Gi"}),
        _asked("unasked", "", {"cpu": "2", "memory": "1Gi"}),
        _asked("fractional", policy, {"cpu": "500m", "memory": "1Gi"}),
        _asked("wide", policy, {"cpu": "20", "memory": "1Gi"}),
        _asked("pair", policy, {"cpu": "4", "memory": "1Gi"}, {"cpu": "6", "memory": "1Gi"}),
        _asked("other-policy", "best-effort", {"cpu": "2", "memory": "1Gi"}),
    )


_BOUND: Final = (
    pod("pinned", {"cpu": "6", "memory": "1Gi"}),
    pod("fraction", {"cpu": "500m", "memory": "1Gi"}),
    pod("burst", {"cpu": "1", "memory": "1Gi"}, limits=False),
)
_GAP: Final = Machine(
    nodes=(Node(0, 16 * GIB, cores=8), Node(8, 16 * GIB, socket=1, cores=8)),
    distances=((10, 40), (40, 10)),
    offline=frozenset({3, 19}),
)

SCENES: Final[dict[str, Scene]] = {
    "two-sockets": Scene(machines.two_socket, _STATIC, _BOUND, _questions("single-numa-node")),
    "dealt-in-turn": Scene(machines.four_node_snc, _STATIC, _BOUND, _questions("single-numa-node")),
    "gap-and-offline-cpus": Scene(_GAP, _STATIC, _BOUND, _questions("single-numa-node")),
    "restricted": Scene(
        machines.two_socket, _with(topologyManagerPolicy="restricted"), _BOUND, _questions("restricted")
    ),
    "reserved-by-amount": Scene(
        machines.two_socket,
        _with(reservedSystemCPUs="", systemReserved={"cpu": "1500m"}),
        _BOUND,
        _questions("single-numa-node"),
    ),
    "cpu-manager-off": Scene(
        machines.two_socket,
        _with(cpuManagerPolicy="none", reservedSystemCPUs="", systemReserved={"cpu": "1500m"}),
        _BOUND,
        _questions("single-numa-node"),
    ),
    "policy-none": Scene(machines.two_socket, _with(topologyManagerPolicy="none"), _BOUND, _questions("")),
    "smt4": Scene(
        "2c-smt4-gpu-memory-nodes",
        _with(topologyManagerPolicy="none", reservedSystemCPUs="0"),
        (pod("pinned", {"cpu": "2", "memory": "1Gi"}),),
        _questions("")[:2],
    ),
}

# CPUs that Volcano believes allocated: of pods that the kubelet has, and of a pod that has not arrived yet.
SENT: Final = (("pinned", "1-6"), ("fraction", ""))
ON_ITS_WAY: Final = ("coming", "8-9")
