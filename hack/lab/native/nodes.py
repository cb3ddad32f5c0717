"""The folder of a node, its name spaces, and its processes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

from images.application import REPOSITORY
from lab import api, chart, controlplane, instruments, kubelet
from lab.errors import LabError
from lab.guest import Guest
from lab.machine import Machine
from lab.native import dra
from lab.qemu import Ports
from sandbox import machines
from sandbox.processes import free_ports

_INSIDE: Final = Path(__file__).parent.parent / "inside"
_SOCKET: Final = "/var/lib/kubelet/cri.sock"
_STARTED_S: Final = 60.0
MOUNT_POINTS: Final = ("/var/lib/kubelet", "/etc/kubernetes", "/host/sys", "/lab")
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
_COMMANDS: Final = {
    # Of systemctl, what the parts call: stop kubelet, start kubelet.
    "systemctl": """#!/bin/sh
case $1 in
stop)
  pkill -TERM -x kubelet; i=0
  while pgrep -x kubelet > /dev/null && [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done
  pkill -KILL -x kubelet ;;
start) cd {folder}/empty && setsid {binary} {arguments} >> {folder}/kubelet.log 2>&1 < /dev/null & ;;
esac
exit 0
""",
    "journalctl": """#!/bin/sh
case "$*" in
*--lines*) tail -n 300 {folder}/kubelet.log ;;
*) cat {folder}/kubelet.log ;;
esac
""",
    # Starts a service again two seconds after its end, as a kubelet restarts a container. The service is a file: so
    # `pkill -f` with the arguments of the service does not match this process.
    "keep": """#!/bin/sh
export TMPDIR={folder}/tmp
while :; do sh {folder}/services/$1 < /dev/null; sleep 2; done
""",
}


class Node(Guest):
    """Commands in the name spaces of a node. Its agent listens at the port of `ports`, as a guest's agent does."""

    def __init__(self, name: str, work: Path, ports: Ports) -> None:
        super().__init__(name, work, ports, work)
        self.folder = work / f"node-{name}"

    def attempt(self, command: str, stdin: str = "", seconds: float = 300.0) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "TMPDIR": f"{self.folder}/tmp"}
        words = [*self.entered(), "sh", "-c", command]
        try:
            return subprocess.run(
                words, check=False, input=stdin, capture_output=True, text=True, timeout=seconds, env=environment
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"node {self.name}: {command:.200} has not ended in {seconds:.0f} s") from None

    def entered(self) -> list[str]:
        """Returns the beginning of a command in the name spaces."""
        spaces = f"/proc/{int((self.folder / 'pid').read_text())}/ns"
        return ["nsenter", f"--mount={spaces}/mnt", f"--pid={spaces}/pid_for_children"]

    def forget_connection(self) -> None:
        """There is no connection."""

    def prepare(self, machine: Machine) -> None:
        """Writes the folder of the node."""
        for part in ("kubelet", "kubernetes/manifests", "run", "tmp", "var/log", "bin", "empty"):
            (self.folder / part).mkdir(parents=True)
        machines.write_tree(described(machine), self.folder / "tree")
        words = f"--config={kubelet.CONFIG} --kubeconfig={kubelet.KUBECONFIG} --hostname-override={self.name} --v=2"
        for name, text in _COMMANDS.items():
            path = self.folder / "bin" / name
            binary = controlplane.binaries() / "kubelet"
            path.write_text(text.format(binary=binary, arguments=words, folder=self.folder))
            path.chmod(0o755)
        for tunable, value in {**_TUNABLES, "kernel/hostname": self.name}.items():
            self._put(f"tunables/{tunable}", value)
        self.boot()
        for program in ("agent.py", "plugin.py"):
            text = (_INSIDE / program).read_text()
            self._put(f"inside/{program}", text.replace('("0.0.0.0", 9999)', f'("127.0.0.1", {self.ports.agent})'))

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
        api.wait((self.folder / "ready").exists, _STARTED_S, f"the name spaces of {self.name}")

    def until_runtime(self) -> None:
        """Waits until the container runtime serves."""
        api.wait((self.folder / "kubelet/cri.sock").exists, _STARTED_S, f"the runtime of {self.name}")


def mount_points() -> None:
    """Makes `MOUNT_POINTS`. Raises LabError."""
    for path in MOUNT_POINTS:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise LabError(f"{path} cannot be made, so no node starts without emulation: {exc}; run as root") from exc


def first_process(node: Node) -> list[str]:
    """Returns the command of the name spaces; the process writes its id as this machine has it."""
    spaces = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
    script = _SCRIPT.replace("$FOLDER", str(node.folder)).replace("$OUTSIDE", str(REPOSITORY))
    return ["sh", "-c", f'echo $$ > {node.folder}/pid; exec "$@"', str(node.folder), *spaces, "sh", "-c", script]


def services(node: Node, machine: Machine, exporter: Path) -> dict[str, list[str]]:
    """Returns the commands beside the kubelet, by name: the runtime and the agent first, then what containers are."""
    python = [sys.executable, "-u"]
    daemon = [
        "env",
        f"POD_NAMESPACE={chart.NAMESPACE}",
        sys.executable,
        str(REPOSITORY / ".venv/bin/topowise-exporter"),
    ]
    return {
        "runtime": [*python, "-m", "lab.native.runtime", _SOCKET],
        "agent": [*python, "/lab/agent.py"],
        **{
            f"plugin-{place}": [*python, f"/lab/{program}", *arguments]
            for place, (program, *arguments) in enumerate(map(instruments.plugin, machine.devices))
        },
        **{verb: [*daemon, verb, f"--config={exporter}"] for verb in ("run", "steer")},
        **({} if machine.claims is None else {"dra": [*python, "-m", "lab.native.dra", *_driver(node, machine)]}),
    }


def _driver(node: Node, machine: Machine) -> list[str]:
    """Returns the arguments of the DRA driver. Nodes of the same machine differ in the attributes that locate a device,
    and in the order of the devices."""
    assert machine.claims is not None
    attributes = dra.ATTRIBUTES[(machine.copy - 1) % len(dra.ATTRIBUTES) :]
    order = dra.ORDERS[(machine.copy - 1) % len(dra.ORDERS)]
    words = [word for attribute in attributes for word in ("--attribute", attribute)]
    return [machine.claims.driver, node.name, kubelet.KUBECONFIG, *words, "--order", order]


def kept(node: Node, name: str, command: Sequence[str]) -> list[str]:
    """Returns a command that starts a service, and starts it again after its end."""
    path = node.folder / "services" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"exec {shlex.join(command)}\n")
    return [*node.entered(), str(node.folder / "bin/keep"), name]


def exporter(node: Node, kubeconfig: Path) -> Path:
    """Writes the exporter's configuration."""
    (port,) = free_ports(1)
    path = node.folder / "exporter.yaml"
    configuration = {
        "apiVersion": "topowise.io/v1alpha1",
        "kind": "ExporterConfiguration",
        "nodeName": node.name,
        "sysfsRoot": "/host/sys",
        "procfsRoot": str(node.folder / "tree/proc"),
        "kubeletRoot": "/var/lib/kubelet",
        "podresourcesSocket": "/var/lib/kubelet/pod-resources/kubelet.sock",
        "kubelet": {"configFile": kubelet.CONFIG},
        "client": {"kubeconfig": str(kubeconfig)},
        "serving": {"address": "127.0.0.1", "port": port},
        "steering": {"enabled": True},
    }
    path.write_text(yaml.safe_dump(configuration))
    return path


def configuration(ports: Ports) -> dict[str, object]:
    """Returns the fields of KubeletConfiguration that a node without cgroups of its own needs."""
    return {
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": ["none"],
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "protectKernelDefaults": True,
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "localStorageCapacityIsolation": False,
        "address": "127.0.0.1",
        "port": ports.kubelet,
        "healthzPort": 0,
        "readOnlyPort": 0,
        "containerRuntimeEndpoint": f"unix://{_SOCKET}",
    }


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
mount --bind $FOLDER/inside /lab
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
for where in / /bin /etc /usr /var /root /tmp /sys /sys/fs/cgroup /lab $OUTSIDE; do
  if [ -w $where ]; then echo "$where is writable in the name space, expected read-only"; exit 1; fi
done
touch $FOLDER/ready
while :; do sleep 1000; done
"""
