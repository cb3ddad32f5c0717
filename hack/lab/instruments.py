"""The lab's own DaemonSet of each guest: its agent, and the device plug-ins of its machine, from the product's image.

They need nothing but Python and gRPC, which that image has; so nothing is installed in a guest for them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import topowise
from lab.api import Json
from lab.machine import Devices, Machine

NAMESPACE: Final = "kube-system"
CONFIG_MAP: Final = "lab-inside"
IMAGE: Final = f"ghcr.io/topowise/topowise:{topowise.__version__}"
_FOLDER: Final = Path(__file__).with_name("inside")
_KUBELET: Final = "/var/lib/kubelet"


def config_map() -> Json:
    """Returns the ConfigMap with the programs."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": NAMESPACE},
        "data": {path.name: path.read_text() for path in sorted(_FOLDER.glob("*.py"))},
    }


def daemon_set(machine: Machine) -> Json:
    """Returns the DaemonSet of a single guest: guests have different devices."""
    labels = {"lab": machine.name}
    plugins = [_container(f"plugin-{place}", plugin(device)) for place, device in enumerate(machine.devices)]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": f"lab-{machine.name}", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "hostNetwork": True,
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": 1,
                    "priorityClassName": "system-node-critical",
                    "nodeSelector": {"kubernetes.io/hostname": machine.name},
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [_container("agent", ["agent.py"]), *plugins],
                    "volumes": [
                        {"name": "inside", "configMap": {"name": CONFIG_MAP}},
                        {"name": "kubelet", "hostPath": {"path": _KUBELET}},
                        {"name": "sys", "hostPath": {"path": "/sys"}},
                    ],
                },
            },
        },
    }


def plugin(devices: Devices) -> list[str]:
    """Its program and arguments."""
    near = [word for nodes, count in devices.near.items() for word in ("--near", f"{nodes}={count}")]
    return ["plugin.py", devices.resource, *(("--pci-class", devices.pci_class) if devices.pci_class else near)]


def _container(name: str, arguments: list[str]) -> Json:
    mounts = {"inside": "/lab", "kubelet": _KUBELET, "sys": "/host/sys"}
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-u", f"/lab/{arguments[0]}", *arguments[1:]],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts.items()],
    }
