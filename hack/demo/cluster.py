"""The cluster of the demo: which processes, with which files, in which order; started, watched, and stopped by their
process ids."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from sandbox import machines
from sandbox.processes import Process, free_ports
from topowise import nrt
from topowise.errors import ApiError, TopowiseError
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise_exporter.kubelet.podresources import DEFAULT_SOCKET


class Processes:
    """Child processes, each with a log file in `directory`, in sessions of their own: a terminal's ^C reaches only the
    demo."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, Process] = {}

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Starts `python -m module`."""
        command = [sys.executable, "-m", module, *arguments]
        self._running[name] = Process(name, command, self._directory / f"{name}.log", own_session=True).__enter__()

    def check(self) -> None:
        """Raises RuntimeError with the end of the log if a process has ended."""
        for process in self._running.values():
            process.check()

    def tails(self) -> str:
        """Returns the end of every log; a failed demo deletes the files."""
        return "\n".join(f"--- {name}\n{process.tail()}" for name, process in self._running.items())

    def ids(self) -> dict[str, int]:
        """Returns the process ids by name."""
        return {name: process.pid for name, process in self._running.items()}

    def stop(self) -> None:
        """Stops all processes in reverse order of their start."""
        for process in reversed(self._running.values()):
            process.__exit__(None, None, None)
        self._running.clear()


REPOSITORY: Final = Path(__file__).resolve().parents[2]
CRD: Final = REPOSITORY / "charts/topowise/crds/noderesourcetopologies.yaml"

# Names of the emulated nodes and the machines they are.
EMULATED: Final = {
    "metal-2s": machines.two_socket,
    "metal-snc": machines.four_node_snc,
    "metal-uneven": machines.four_node_uneven,
    "metal-cxl": machines.two_node_cxl,
}

# The `schedulerName` of the demo's pods.
SCHEDULER: Final = "topowise-scheduler"
# An idle machine needs a fraction of this; a busy machine must not fail.
_LIMIT_S: Final = 120.0


class Node(msgspec.Struct, frozen=True):
    """A node of the demo and where its exporter finds it. `is_emulated`: the sandbox plays its kubelet."""

    name: str
    sysfs: Path
    procfs: Path
    socket: Path
    kubelet_config: Path
    is_emulated: bool


class Cluster:
    """The demo's cluster: all its files are in `directory`, with a `kubeconfig` that kubectl can use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes = Processes(directory)
        self.kubeconfig = directory / "kubeconfig"
        self.extender_port, self.pages_port, self.health_port = free_ports(3)
        self.nodes: list[Node] = []

    @property
    def extender(self) -> str:
        """The `urlPrefix` a kube-scheduler would be given."""
        return f"http://127.0.0.1:{self.extender_port}"

    @property
    def pages(self) -> str:
        """Where people ask."""
        return f"http://127.0.0.1:{self.pages_port}"

    async def start_api_server(self) -> None:
        """Starts the embedded API server with the NRT CRD."""
        self.processes.start(
            "apiserver", "sandbox.apiserver", "--kubeconfig-out", str(self.kubeconfig), "--crd", str(CRD)
        )
        await self._until(self._kubeconfig_is_there, "the API server")

    async def start_kubelets(self) -> None:
        """Starts the emulated kubelets; a real kubelet of this machine runs already."""
        self.nodes = [self._own_node(), *(self._emulated_node(name) for name in EMULATED)]
        # Without a pause, `kubectl delete` waits for the end of the next pod of the same name.
        arguments = ["--stop", "0.5-1"]
        for node in self.nodes:
            if node.is_emulated:
                arguments += ["--node", f"{node.name}={self.directory / node.name}"]
        self.processes.start("kubelets", "sandbox.kubelet", "--kubeconfig", str(self.kubeconfig), *arguments)
        await self._until(lambda: _all_exist([node.socket for node in self.nodes]), "the kubelets' sockets")

    def start_exporters(self) -> None:
        """Starts an exporter for each node."""
        for node in self.nodes:
            config = self._write(
                f"{node.name}/exporter.yaml",
                {
                    **_configuration("ExporterConfiguration", self.kubeconfig),
                    "nodeName": node.name,
                    "sysfsRoot": str(node.sysfs),
                    "procfsRoot": str(node.procfs),
                    "podresourcesSocket": str(node.socket),
                    "kubeletRoot": str(node.kubelet_config.parent),
                    "kubelet": {"configFile": str(node.kubelet_config) if node.kubelet_config.exists() else ""},
                    "serving": {"port": 0},
                },
            )
            name = f"exporter-{node.name}"
            self.processes.start(name, "topowise_exporter", "run", "--config", str(config))

    def start_scheduler(self) -> None:
        """Starts topowise-scheduler."""
        config = self._write(
            "scheduler.yaml",
            {
                **_configuration("SchedulerConfiguration", self.kubeconfig),
                "extender": {"port": self.extender_port},
                "readOnly": {"port": self.pages_port},
                "ui": {"enabled": True},
                "preemptor": {"enabled": True},
                "serving": {"address": "127.0.0.1", "port": self.health_port},
            },
        )
        self.processes.start("scheduler", "topowise_scheduler", "serve", "--config", str(config))

    def start_control_plane(self) -> None:
        """Starts controllers and kube-scheduler for later pods, under the demo's name and as the cluster's default."""
        self.processes.start("controllers", "sandbox.controllers", "--kubeconfig", str(self.kubeconfig))
        arguments = ("--kubeconfig", str(self.kubeconfig), "--extender", self.extender)
        names = (SCHEDULER, "default-scheduler")
        self.processes.start("kube-scheduler", "sandbox.kubescheduler", *arguments, *names)

    async def api(self) -> Api:
        """Returns a client of the API server; the caller enters and leaves it."""
        return Api(await credentials.load(str(self.kubeconfig)), "demo")

    async def until_reported(self, api: Api) -> None:
        """Waits until every node has its NodeResourceTopology."""

        async def reported() -> bool:
            reports = msgspec.json.decode(await api.request("GET", nrt.PATH))
            return {item["metadata"]["name"] for item in reports["items"]} >= {node.name for node in self.nodes}

        await self._until(reported, "the exporters' first reports")

    async def until(self, done: Callable[[], Awaitable[bool]], event: str) -> None:
        """Waits for anything else, watching over the processes."""
        await self._until(done, event)

    async def _until(self, done: Callable[[], Awaitable[bool]], event: str, limit: float = _LIMIT_S) -> None:
        deadline = time.monotonic() + limit
        while True:
            self.processes.check()
            try:
                if await done():
                    return
            except (ApiError, OSError):
                pass
            if time.monotonic() > deadline:
                raise TopowiseError(
                    f"{event}: not there after {limit:.0f}s; the ends of the logs:\n{self.processes.tails()}"
                )
            await asyncio.sleep(0.05)

    async def _kubeconfig_is_there(self) -> bool:
        if not self.kubeconfig.exists():
            return False
        async with await self.api() as api:
            await api.request("GET", nrt.PATH)
        return True

    def _own_node(self) -> Node:
        """Returns this machine as a node: its real /sys, and its kubelet if it runs."""
        real = Path(DEFAULT_SOCKET).exists()
        root = self.directory / "this-machine"
        kubelet = Path("/var/lib/kubelet") if real else root / "kubelet"
        if not real:
            self._write("this-machine/kubelet/config.yaml", {**_KUBELET, "memoryManagerPolicy": "None"})
            (root / "sys").symlink_to("/sys")
            (root / "proc").symlink_to("/proc")
        return Node(
            name=socket.gethostname().lower() if real else "this-machine",
            sysfs=Path("/sys"),
            procfs=Path("/proc"),
            socket=kubelet / "pod-resources/kubelet.sock",
            kubelet_config=kubelet / "config.yaml",
            is_emulated=not real,
        )

    def _emulated_node(self, name: str) -> Node:
        root = self.directory / name
        machine = EMULATED[name]
        machines.write_tree(machine, root)
        self._write(f"{name}/kubelet/config.yaml", _kubelet_config(machine))
        return Node(
            name=name,
            sysfs=root / "sys",
            procfs=root / "proc",
            socket=root / "kubelet/pod-resources/kubelet.sock",
            kubelet_config=root / "kubelet/config.yaml",
            is_emulated=True,
        )

    def _write(self, path: str, document: dict[str, Any]) -> Path:
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(yaml.safe_dump(document, sort_keys=False))
        return target


_KUBELET: Final[dict[str, Any]] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "topologyManagerPolicy": "single-numa-node",
    "topologyManagerScope": "container",
    "cpuManagerPolicy": "static",
    "systemReserved": {"cpu": "500m", "memory": "512Mi"},
    "evictionHard": {"memory.available": "100Mi"},
}


def _kubelet_config(machine: machines.Machine) -> dict[str, Any]:
    """Reserves a core and a GiB on the first two NUMA nodes; reservedMemory must sum up to all reservations."""
    first, second = machine.nodes[:2]
    return {
        **_KUBELET,
        "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
        "reservedSystemCPUs": _first_core(machine),
        "memoryManagerPolicy": "Static",
        "systemReserved": {"memory": "1948Mi"},
        "reservedMemory": [
            {"numaNode": first.id, "limits": {"memory": "1Gi"}},
            {"numaNode": second.id, "limits": {"memory": "1Gi"}},
        ],
    }


def _first_core(machine: machines.Machine) -> str:
    return ",".join(map(str, machines.layout(machine)[0].threads))


def _configuration(kind: str, kubeconfig: Path) -> dict[str, Any]:
    return {"apiVersion": "topowise.io/v1alpha1", "kind": kind, "client": {"kubeconfig": str(kubeconfig)}}


async def _all_exist(paths: list[Path]) -> bool:
    return all(path.exists() for path in paths)
