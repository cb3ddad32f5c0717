"""What a guest's kubelet is told: its configuration, and how it finds the API server."""

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
ENVIRONMENT: Final = "/etc/kubernetes/kubelet.env"
# As a guest sees the machine that it runs on.
HOST: Final = "10.0.2.2"


def configuration(machine: Machine, changed: Json | None = None) -> Json:
    """KubeletConfiguration: the lab's, then the machine's, then what a test has changed."""
    own = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # The port is forwarded to this machine's loopback alone.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "systemd",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
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
    """Returns a kubeconfig that names the Service, which the certificate is for, in place of the guest's address."""
    cluster = {
        "server": f"https://{HOST}:{port}",
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
