"""The folder of a node, its name spaces, its processes, and what its kubelet says."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import yaml
from google.protobuf.json_format import MessageToDict

from images.application import REPOSITORY
from lab import controlplane, dra
from lab.api import Json, LabError, wait
from lab.machine import CONFIG, KUBECONFIG, SOCKET, Devices, Machine
from sandbox import machines
from sandbox.processes import free_ports
from topowise.wire import podresources_pb2, podresources_pb2_grpc

_STARTED_S: Final = 60.0
_COMMAND_S: Final = 300.0
MOUNT_POINTS: Final = ("/var/lib/kubelet", "/etc/kubernetes", "/host/sys")
"""Empty folders of this machine, to which the folders of a node are bound."""
# All NUMA nodes of a node together. The kubelet compares its pods with the memory of this machine.
MEMORY_MIB: Final = 16 << 10
# Of the buses below a root complex, display controllers of a DRA driver have the last eight.
_FIRST_GPU: Final = 8
# As the kubelet wants them (setupKernelTunables), and what kubelet and cAdvisor read beside them.
_TUNABLES: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "vm/max_map_count": "65530",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/pid_max": "4194304",
    "kernel/threads-max": "100000",
    "kernel/cap_last_cap": "40",
}
_BOOT_IDS: Final = ("tunables/kernel/random/boot_id", "tree/proc/sys/kernel/random/boot_id")
# Starts a service again two seconds after its end, as a kubelet restarts a container. The service is a file: so
# `pkill -f` with the arguments of the service does not match this process.
_KEEP: Final = """#!/bin/sh
export TMPDIR={folder}/tmp
while :; do sh {folder}/services/$1 < /dev/null; sleep 2; done
"""
_STOP_KUBELET: Final = """\
pkill -TERM -x kubelet; i=0
while pgrep -x kubelet > /dev/null && [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done
pkill -KILL -x kubelet || true
"""
STATE_FILES: Final = ("cpu_manager_state", "memory_manager_state")
_FILES: Final = (*STATE_FILES, "device-plugins/kubelet_internal_checkpoint", dra.PREPARED.name)
_SYS: Final = (
    "devices/system/node/node*/cpulist",
    "devices/system/node/node*/distance",
    "devices/system/node/node*/meminfo",
    "devices/system/node/node*/hugepages/*/nr_hugepages",
    "bus/pci/devices/*/numa_node",
)


class Node:
    """Its folder is in `work`, the lab's directory, and its kubelet listens at `port`. Commands run in its name spaces;
    the files of its kubelet, and the sockets, are read from outside."""

    def __init__(self, name: str, work: Path, port: int) -> None:
        self.name, self.port = name, port
        self.folder = work / f"node-{name}"

    def run(self, command: str, stdin: str = "") -> str:
        """Runs a shell command, and returns its output. Raises LabError."""
        done = self.attempt(command, stdin)
        if done.returncode:
            raise LabError(f"node {self.name}: {command:.200} ended with {done.returncode}: {done.stderr[-600:]}")
        return done.stdout

    def attempt(self, command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a shell command, and returns the completed process whatever its status."""
        environment = {**os.environ, "TMPDIR": f"{self.folder}/tmp"}
        words = [*self.entered(), "sh", "-c", command]
        try:
            return subprocess.run(
                words, check=False, input=stdin, capture_output=True, text=True, timeout=_COMMAND_S, env=environment
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"node {self.name}: {command:.200} has not ended in {_COMMAND_S:.0f} s") from None

    def write(self, files: Mapping[str, str]) -> None:
        """Files by path, with their folders."""
        for path, text in files.items():
            self.run(f"mkdir -p {shlex.quote(str(Path(path).parent))} && cat > {shlex.quote(path)}", text)

    def start_kubelet(self) -> None:
        words = f"--config={CONFIG} --kubeconfig={KUBECONFIG} --hostname-override={self.name} --v=2"
        binary = controlplane.binaries() / "kubelet"
        self.run(f"cd {self.folder}/empty && setsid {binary} {words} >> {self.log} 2>&1 < /dev/null &")

    def stop_kubelet(self, remove: Sequence[str] = ()) -> None:
        """Stops the kubelet, and removes these files of its folder."""
        self.run(_STOP_KUBELET)
        for file in remove:
            (self.folder / "kubelet" / file).unlink(missing_ok=True)

    @property
    def log(self) -> Path:
        """The kubelet's log."""
        return self.folder / "kubelet.log"

    def seen(self) -> Json:
        """Returns the state files and podresources. Raises LabError."""
        files = {}
        for name in _FILES:
            path = self.folder / "kubelet" / name
            if path.exists():
                files[name] = {"text": path.read_text()}
        socket = f"unix://{self.folder}/kubelet/pod-resources/kubelet.sock"
        try:
            # The kubelet's gRPC requires a valid authority; for a unix socket the default is the path.
            with grpc.insecure_channel(socket, [("grpc.default_authority", "localhost")]) as channel:
                pods = podresources_pb2_grpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
                listed = pods.List(podresources_pb2.ListPodResourcesRequest(), timeout=10)
                allocatable = pods.GetAllocatableResources(podresources_pb2.AllocatableResourcesRequest(), timeout=10)
        except grpc.RpcError as exc:
            raise LabError(f"podresources of {self.name}: {exc}") from exc
        return {"files": files, "list": _decoded(listed), "allocatable": _decoded(allocatable)}

    def sys(self) -> dict[str, str]:
        """Returns texts of the node's /sys by path."""
        root = self.folder / "tree/sys"
        paths = [path for pattern in _SYS for path in sorted(root.glob(pattern))]
        return {str(path.relative_to(root)): path.read_text() for path in paths}

    def entered(self) -> list[str]:
        """Returns the beginning of a command in the name spaces."""
        spaces = f"/proc/{int((self.folder / 'pid').read_text())}/ns"
        return ["nsenter", f"--mount={spaces}/mnt", f"--pid={spaces}/pid_for_children"]

    def prepare(self, machine: Machine) -> None:
        """Writes the folder of the node."""
        for part in ("kubelet", "kubernetes/manifests", "run", "tmp", "var/log", "bin", "services", "empty"):
            (self.folder / part).mkdir(parents=True)
        machines.write_tree(described(machine), self.folder / "tree")
        keep = self.folder / "bin/keep"
        keep.write_text(_KEEP.format(folder=self.folder))
        keep.chmod(0o755)
        for tunable, value in {**_TUNABLES, "kernel/hostname": self.name}.items():
            self._put(f"tunables/{tunable}", value)
        self.boot()

    def boot(self) -> None:
        """Gives the node another boot id: for the kubelet, and for the exporter, which reads the machine's tree."""
        boot_id = str(uuid.uuid4())
        for path in _BOOT_IDS:
            self._put(path, boot_id)
        (self.folder / "ready").unlink(missing_ok=True)
        (self.folder / "kubelet/cri.sock").unlink(missing_ok=True)

    def _put(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def until_booted(self) -> None:
        """Waits until the name spaces are ready."""
        wait((self.folder / "ready").exists, _STARTED_S, f"the name spaces of {self.name}")

    def until_runtime(self) -> None:
        """Waits until the container runtime serves."""
        wait((self.folder / "kubelet/cri.sock").exists, _STARTED_S, f"the runtime of {self.name}")


def _decoded(message: Any) -> Json:
    return MessageToDict(message, preserving_proto_field_name=True)


def mount_points() -> None:
    """Makes `MOUNT_POINTS`. Raises LabError."""
    for path in MOUNT_POINTS:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise LabError(f"{path} cannot be made, so no node starts: {exc}; run as root") from exc


def first_process(node: Node) -> list[str]:
    """Returns the command of the name spaces; the process writes its id as this machine has it."""
    spaces = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
    script = _SCRIPT.replace("$FOLDER", str(node.folder)).replace("$OUTSIDE", str(REPOSITORY))
    return ["sh", "-c", f'echo $$ > {node.folder}/pid; exec "$@"', str(node.folder), *spaces, "sh", "-c", script]


def services(node: Node, machine: Machine) -> dict[str, list[str]]:
    """Returns the commands beside the kubelet, by name: the runtime first, then what containers are."""
    python = [sys.executable, "-u"]
    daemon = [
        "env",
        f"POD_NAMESPACE={controlplane.NAMESPACE}",
        sys.executable,
        str(REPOSITORY / ".venv/bin/topowise-exporter"),
    ]
    return {
        "runtime": [*python, "-m", "lab.runtime", SOCKET],
        **{
            f"plugin-{place}": [*python, "-m", "lab.plugin", *_plugin(devices)]
            for place, devices in enumerate(machine.devices)
        },
        **{verb: [*daemon, verb, f"--config={_exporter_config(node)}"] for verb in ("run", "steer")},
        **({} if machine.claims is None else {"dra": [*python, "-m", "lab.dra", *_driver(node, machine)]}),
    }


def _plugin(devices: Devices) -> list[str]:
    """Returns the arguments of a device plug-in."""
    near = [word for nodes, count in devices.near.items() for word in ("--near", f"{nodes}={count}")]
    return [devices.resource, *(("--pci-class", devices.pci_class) if devices.pci_class else near)]


def _driver(node: Node, machine: Machine) -> list[str]:
    """Returns the arguments of the DRA driver. Nodes of the same machine differ in the attributes that locate a device,
    and in the order of the devices."""
    assert machine.claims is not None
    attributes = dra.ATTRIBUTES[(machine.copy - 1) % len(dra.ATTRIBUTES) :]
    order = dra.ORDERS[(machine.copy - 1) % len(dra.ORDERS)]
    words = [word for attribute in attributes for word in ("--attribute", attribute)]
    return [machine.claims.driver, node.name, KUBECONFIG, *words, "--order", order]


def kept(node: Node, name: str, command: Sequence[str]) -> list[str]:
    """Returns a command that starts a service, and starts it again after its end."""
    path = node.folder / "services" / name
    path.write_text(f"exec {shlex.join(command)}\n")
    return [*node.entered(), str(node.folder / "bin/keep"), name]


def _exporter_config(node: Node) -> Path:
    return node.folder / "exporter.yaml"


def exporter(node: Node, kubeconfig: Path) -> None:
    """Writes the exporter's configuration."""
    (port,) = free_ports(1)
    configuration = {
        "apiVersion": "topowise.io/v1alpha1",
        "kind": "ExporterConfiguration",
        "nodeName": node.name,
        "sysfsRoot": "/host/sys",
        "procfsRoot": str(node.folder / "tree/proc"),
        "kubeletRoot": "/var/lib/kubelet",
        "podresourcesSocket": "/var/lib/kubelet/pod-resources/kubelet.sock",
        "kubelet": {"configFile": CONFIG},
        "client": {"kubeconfig": str(kubeconfig)},
        "serving": {"address": "127.0.0.1", "port": port},
        "steering": {"enabled": True},
    }
    _exporter_config(node).write_text(yaml.safe_dump(configuration))


def described(machine: Machine) -> machines.Machine:
    """Returns the machine of a machine file as `sandbox.machines` has it. Memory differs: `MEMORY_MIB`."""
    with_cpus = [node for node in machine.nodes if node.socket is not None]
    cores = machine.sockets * machine.dies * machine.cores // len(with_cpus)
    memory = (MEMORY_MIB // len(machine.nodes)) << 20
    near = {} if machine.claims is None else machine.claims.near
    functions: Sequence[machines.Pci] = [
        function
        for number, node in enumerate(machine.nodes)
        for make, count, first in (
            (machines.nic, node.pci.count("network"), 0),
            (machines.gpu, near.get(number, 0), _FIRST_GPU),
        )
        for place in range(first, first + count)
        for function in make(f"0000:{number + 1}{place:x}:00.0", number, f"0000:{number}f:{place + 1:02x}.0")
    ]
    return machines.Machine(
        tuple(
            machines.Node(
                number,
                memory,
                socket=node.socket or 0,
                cores=0 if node.socket is None else cores,
                hugepages={machines.PAGE_2M: node.hugepages_2mi},
            )
            for number, node in enumerate(machine.nodes)
        ),
        machine.distance,
        threads_per_core=machine.threads,
        numbering="adjacent",
        pci=tuple(functions),
    )


# Kubelets delete files: by the names that a runtime gives them, among others. So a node can write to its folder alone.
# /tmp stays visible, read-only, because the folder and the checkout may be below it; $TMPDIR is in the folder.
_SCRIPT: Final = """\
set -e
mount -t proc proc /proc
mount --bind $FOLDER $FOLDER
for part in devices/system/cpu devices/system/node kernel/mm/hugepages; do
  mount --bind $FOLDER/tree/sys/$part /sys/$part
done
mount --bind $FOLDER/tree/sys /host/sys
mount --bind $FOLDER/kubelet /var/lib/kubelet
mount --bind $FOLDER/kubernetes /etc/kubernetes
for part in run var/log; do
  mount --bind $FOLDER/$part /$part
done
# The kubelet finds the kernel's tunables as it wants them, and sets nothing on this machine.
for part in vm kernel; do
  mount --bind $FOLDER/tunables/$part /proc/sys/$part
done
while read -r _ _ _ _ where _; do
  case $where in
  /proc | /proc/* | /dev/shm | /dev/pts | /run | /var/log | /var/lib/kubelet | /etc/kubernetes | $FOLDER) ;;
  *) mount -o remount,bind,ro $where ;;
  esac
done < /proc/self/mountinfo
for where in / /bin /etc /usr /var /root /tmp /sys /sys/fs/cgroup $OUTSIDE; do
  if [ -w $where ]; then echo "$where is writable in the name space, expected read-only"; exit 1; fi
done
touch $FOLDER/ready
while :; do sleep 1000; done
"""
