"""etcd, kube-apiserver, kube-controller-manager, kube-scheduler and topowise-scheduler, on loopback of this machine.

The binaries are in $KUBEBUILDER_ASSETS. All clients have the rights of a real cluster: nodes by the Node authorizer,
kube-scheduler and topowise-scheduler as system:kube-scheduler with the chart's rights for mode static.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import yaml

from images.application import REPOSITORY
from lab import machine
from lab.api import Api, Json, LabError, wait
from lab.running import Plan, Processes
from sandbox import controlplane
from sandbox.apiserver import documents
from sandbox.controlplane import ADMIN, USERS, apiserver_arguments, assets, etcd_arguments, token_of
from sandbox.processes import free_ports
from topowise import steering

BINARIES: Final = ("kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
ALONE: Final = "kube-scheduler-alone"
SERVICE: Final = "topowise-scheduler"
_READY_S: Final = 90.0
# As the chart sets it with steering.
_TIMEOUT: Final = "10s"


def binaries() -> Path:
    """Returns the directory of the binaries. Raises LabError."""
    folder = assets(*BINARIES)
    if folder is None:
        raise LabError(
            f"etcd, kube-apiserver, {', '.join(BINARIES)} are wanted in $KUBEBUILDER_ASSETS, not all are there"
        )
    return folder


def node_user(name: str) -> str:
    return f"system:node:{name}"


def kubeconfig(directory: Path, port: int, user: str = ADMIN) -> Path:
    """Writes the kubeconfig of a user on this machine."""
    path = directory / ("kubeconfig" if user == ADMIN else f"kubeconfig-{user.replace(':', '-')}")
    return documents.write_kubeconfig(path, _url(port), token=token_of(user), insecure=True)


def certificate(directory: Path) -> bytes:
    """Returns the certificate with which clients verify the API server."""
    return (directory / "certs/apiserver.crt").read_bytes()


def client(port: int) -> Api:
    return Api(_url(port), token_of(ADMIN))


def start(processes: Processes, plan: Plan) -> None:
    """Starts all but the schedulers, which need the chart's CRDs. Raises LabError."""
    folder, work = binaries(), processes.directory
    (etcd_port, manager_port) = free_ports(2)
    etcd = f"http://127.0.0.1:{etcd_port}"
    processes.start("etcd", etcd_arguments(folder, work, etcd))
    users = USERS | {node_user(name): "system:nodes" for name in plan.kubelets}
    arguments = apiserver_arguments(folder, work, etcd, plan.api, users)
    own = ["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"]
    processes.start("kube-apiserver", [*arguments, *own])
    _until_ready(processes, client(plan.api), "kube-apiserver")
    processes.start("kube-controller-manager", _manager(folder, work, plan.api, manager_port))


def start_schedulers(processes: Processes, plan: Plan) -> None:
    """Starts the service, the stock kube-scheduler that calls it, and a kube-scheduler without topowise (`ALONE`)."""
    _start_service(processes, plan)
    extender = controlplane.extender(f"http://127.0.0.1:{plan.extender}", httpTimeout=_TIMEOUT)
    ignored = {"name": "NodeResourcesFit", "args": {"ignoredResources": [steering.RESOURCE]}}
    profile = {"schedulerName": "default-scheduler", "pluginConfig": [ignored]}
    _start_scheduler(processes, plan, "kube-scheduler", {"profiles": [profile], "extenders": [extender]})
    _start_scheduler(processes, plan, ALONE, {"profiles": [{"schedulerName": ALONE}]})


def _start_service(processes: Processes, plan: Plan) -> None:
    work = processes.directory
    kubeconfig_path = kubeconfig(work, plan.api, controlplane.USER)
    service = {
        "apiVersion": "topowise.io/v1alpha1",
        "kind": "SchedulerConfiguration",
        "logging": {"verbosity": 2},
        "client": {"kubeconfig": str(kubeconfig_path)},
        "extender": {"port": plan.extender},
        "readOnly": {"port": plan.explaining},
        "serving": {"address": "127.0.0.1", "port": plan.metrics},
        "steering": {"enabled": True},
        "resourceClaims": {"enabled": True, "drivers": _drivers(plan)},
        "placement": {"enabled": True},
    }
    config = work / "topowise.yaml"
    config.write_text(yaml.safe_dump(service))
    serve = [sys.executable, "-m", "topowise_scheduler", "serve", f"--config={config}"]
    processes.start(SERVICE, ["env", f"POD_NAMESPACE={NAMESPACE}", *serve])
    _until_ready(processes, Api(f"http://127.0.0.1:{plan.metrics}", ""), SERVICE)


def _drivers(plan: Plan) -> list[str]:
    """Returns the DRA drivers of the lab. The service and kube-scheduler share a user here, so that no policy can keep
    kube-scheduler from allocating their devices: pods come by one of both at a time."""
    claims = [machine.read(name).claims for name in plan.kubelets]
    return sorted({each.driver for each in claims if each is not None})


def _start_scheduler(processes: Processes, plan: Plan, name: str, configuration: Json) -> None:
    (port,) = free_ports(1)
    work = processes.directory / f"{name}.d"
    work.mkdir(exist_ok=True)
    kubeconfig_path = kubeconfig(processes.directory, plan.api, controlplane.USER)
    binary = binaries() / controlplane.BINARY
    processes.start(name, controlplane.arguments(binary, work, kubeconfig_path, configuration, port))


def _manager(folder: Path, work: Path, port: int, own_port: int) -> list[str]:
    return [
        str(folder / "kube-controller-manager"),
        f"--kubeconfig={kubeconfig(work, port)}",
        "--bind-address=127.0.0.1",
        f"--secure-port={own_port}",
        f"--cert-dir={work / 'manager'}",
        "--leader-elect=false",
        f"--service-account-private-key-file={work / 'service-account.key'}",
        f"--root-ca-file={work / 'certs/apiserver.crt'}",
    ]


def _url(port: int) -> str:
    return f"https://127.0.0.1:{port}"


def _until_ready(processes: Processes, api: Api, name: str) -> None:
    def ready() -> bool:
        processes.check()
        try:
            with api.stream("GET", "/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    wait(ready, _READY_S, f"{name} is ready")


NAMESPACE: Final = "topowise-system"
_EXPORTER: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/topowise-exporter"
LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
# topowise-scheduler has the rights that the chart gives to kube-scheduler's user.
_VALUES: Final = (
    "scheduler.mode=static",
    "steering.enabled=true",
    "scheduler.config.resourceClaims.enabled=true",
    "scheduler.config.placement.enabled=true",
)
_HELM_S: Final = 180


def install(kubeconfig: Path, api: Api) -> None:
    """Installs the release, and deletes the DaemonSet of the exporter. Raises LabError."""
    _helm("--fetch")
    values = [f"--set={value}" for value in _VALUES]
    where = [f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", "--create-namespace"]
    _helm("install", "topowise", str(REPOSITORY / "charts/topowise"), *where, *values)
    api.delete(_EXPORTER)


def _helm(*arguments: str) -> None:
    command = [str(REPOSITORY / "hack/helm"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_HELM_S)
    if done.returncode:
        raise LabError(f"helm {' '.join(arguments)[:120]} ended with {done.returncode}: {done.stderr[-800:]}")
