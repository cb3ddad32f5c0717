"""What a node's kubelet is told: its configuration, and how it finds the API server."""

from __future__ import annotations

import base64
from typing import Any, Final

from lab.machine import Machine
from topowise import cpuset

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
