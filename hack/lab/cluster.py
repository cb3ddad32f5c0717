"""A lab that runs: its API server, its guests, and what tests ask of both."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lab import base, controlplane, instruments, kubelet, machine, qemu, truth
from lab.api import NODES, PODS, Json, Watch, wait
from lab.errors import LabError
from lab.guest import Guest
from lab.qemu import Disks, Ports
from lab.running import Plan, Processes
from lab.series import LABEL
from sandbox.controlplane import token_of
from topowise import nrt
from topowise.errors import ParseError

_READY_S: Final = 300.0
# A kubelet that is stopped between the two writes of an allocation does not start again (policy_static.go,
# validateState), until the file is removed.
_DISAGREES: Final = "the expected machine state is different from the real one"
_STARTING_S: Final = 120.0
_SETTLED_S: Final = 90.0
_OUTCOME_S: Final = 60.0
_PREDICTIONS: Final = 'topowise_scheduler_predictions_total{precision="'
_VERDICTS: Final = "topowise_scheduler_verdicts_total"
_WAITS: Final = "waiting for a"
STEERED: Final = 72
CLAIMED: Final = 200
MEMORY_STATE: Final = "memory_manager_state"
STATE_FILES: Final = ("cpu_manager_state", MEMORY_STATE)


class Lab:
    """`setting` are the fields of KubeletConfiguration of the whole test, `changed` the fields that a part has set, by
    guest, in addition; `steered` is the number of pods that are steered by policy and guest, `claimed` the number of
    pods with claims by way; `disagreements` counts kubelets that their own memory_manager_state kept from starting, so
    that it was removed, as an operator has to."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory, self.plan = directory, plan
        self.processes = Processes(directory)
        self.api = controlplane.client(plan.api)
        self.kubeconfig = directory / "kubeconfig"
        self.machines = {Path(name).stem: machine.read(name) for name in plan.guests}
        self.guests = {Path(name).stem: self.guest(Path(name).stem, ports) for name, ports in plan.guests.items()}
        self.setting: Json = {}
        self.changed: dict[str, Json] = {name: {} for name in self.guests}
        self.hardware: dict[str, dict[int, truth.Node]] = {}
        self.disagreements = 0
        self.steered = STEERED
        self.claimed = CLAIMED

    def guest(self, name: str, ports: Ports) -> Guest:
        """Returns the guest of this name."""
        return Guest(name, self.directory, ports, base.made().key)

    def watch(self) -> None:
        """Starts the watches of objects and pods."""
        self.reports, self.pods = Watch(self.api, nrt.PATH), Watch(self.api, PODS)

    def power_on(self, name: str) -> None:
        """Starts the guest's QEMU, with its present disk or a new disk."""
        guest, disk, debian = self.guests[name], self.directory / f"{name}.qcow2", base.made()
        if not disk.exists():
            backing = ["-F", "raw", "-b", str(debian.disk)]
            subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *backing, str(disk)], check=True)
        disks = Disks(disk, self.directory / "shared")
        command = qemu.command(self.machines[name], debian, disks, guest.ports, self.directory, self.plan.accelerator)
        self.processes.start(f"guest-{name}", command)

    def join(self, name: str) -> None:
        """Tells the kubelet of a booted guest all that it needs, and starts it."""
        user = controlplane.node_user(name)
        config = kubelet.kubeconfig(self.plan.api, controlplane.certificate(self.directory), token_of(user))
        self.configure(name)
        self.guests[name].write(
            {
                kubelet.KUBECONFIG: json.dumps(config),
                kubelet.ENVIRONMENT: f"KUBELET_ARGS=--hostname-override={name} --v=2\n",
            }
        )
        self.guests[name].run(f"lab-service {self.plan.api} && systemctl start kubelet")

    def reboot(self, name: str) -> None:
        """Restarts the machine. QEMU ends when a guest reboots, so it is started again with the disk that it had."""
        guest = self.guests[name]
        guest.attempt("sync; systemctl reboot --force", seconds=60)
        wait(lambda: self.processes.has_ended(f"guest-{name}"), 120, f"guest {name} goes off", 0.5)
        guest.forget_connection()
        self.hardware.pop(name, None)
        self.power_on(name)
        guest.until_booted()
        self.join(name)
        self.until_ready(name, self.now(name))
        self.until_devices(name)

    def plugin_starts(self, name: str) -> int:
        """Returns how often the containers of the lab's own pod have restarted; the device plug-ins are among them."""
        return sum(
            status.get("restartCount", 0)
            for item in self.api.items(f"/api/v1/namespaces/{instruments.NAMESPACE}/pods")
            if item["spec"].get("nodeName") == name
            for status in item["status"].get("containerStatuses", ())
        )

    def runtime_versions(self) -> dict[str, str]:
        """Returns the versions of what runs containers and guests."""
        name, guest = next(iter(self.guests.items()))
        info = self.api.call("GET", f"{NODES}/{name}")["status"]["nodeInfo"]
        done = subprocess.run([qemu.PROGRAM, "--version"], check=False, capture_output=True, text=True, timeout=60)
        return {
            "container runtime": info["containerRuntimeVersion"],
            "runc": guest.run("runc --version").split("\n", 1)[0].removeprefix("runc version "),
            "kernel of the guests": info["kernelVersion"],
            "QEMU": done.stdout.partition("\n")[0].partition("version ")[2].strip(),
        }

    def configure(self, name: str) -> None:
        """Writes the configuration of its kubelet."""
        configuration = kubelet.configuration(self.machines[name], {**self.setting, **self.changed[name]})
        self.guests[name].write({kubelet.CONFIG: json.dumps(configuration, indent=1)})

    def restart_kubelet(self, name: str, *, forget: bool = False) -> None:
        """Restarts the kubelet; `forget` removes its state files, as a change of policies requires."""
        files = " ".join(f"/var/lib/kubelet/{file}" for file in STATE_FILES)
        removed = f"rm -f {files};" if forget else ""
        self.guests[name].run(f"systemctl stop kubelet; {removed}")
        # The last heartbeat of the old kubelet may have devices that the new kubelet does not know yet.
        since = self.now(name)
        self.guests[name].run("systemctl start kubelet")
        try:
            self.until_ready(name, since, _STARTING_S)
        except LabError:
            if _DISAGREES not in self.guests[name].run("journalctl --unit kubelet --no-pager --lines 300"):
                raise
            self.disagreements += 1
            self.guests[name].run(f"systemctl stop kubelet; rm -f /var/lib/kubelet/{MEMORY_STATE}")
            self.guests[name].run("systemctl start kubelet")
            self.until_ready(name, self.now(name))

    def now(self, name: str) -> str:
        """Returns the guest's time as heartbeats have it: in whole seconds, so rounded up to the next second."""
        seconds = int(self.guests[name].run("date +%s")) + 1
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))

    def until_ready(self, name: str, since: str = "", seconds: float = _READY_S) -> None:
        """Waits until the node is Ready by a heartbeat at or after `since`. Raises LabError."""

        def ready() -> bool:
            self.processes.check()
            node = self.api.find(f"{NODES}/{name}") or {}
            conditions = node.get("status", {}).get("conditions", ())
            return any(
                condition["type"] == "Ready"
                and condition["status"] == "True"
                and condition["lastHeartbeatTime"] >= since
                for condition in conditions
            )

        wait(ready, seconds, f"node {name} is Ready", 0.5)

    def until_devices(self, name: str) -> None:
        """Waits until every device plug-in of the machine has registered. Raises LabError."""
        resources = {plugin.resource for plugin in self.machines[name].devices}

        def there() -> bool:
            node = self.api.find(f"{NODES}/{name}") or {}
            allocatable = node.get("status", {}).get("allocatable", {})
            return all(int(allocatable.get(resource, 0)) > 0 for resource in resources)

        wait(there, _READY_S, f"{', '.join(sorted(resources))} on {name}", 0.5)

    def holding(self, name: str) -> truth.Truth:
        """Returns the kubelet's state, as soon as the agent can read it. Raises LabError."""

        def told() -> truth.Truth | None:
            try:
                return truth.read(self.guests[name].seen().told)
            except (LabError, KeyError, ParseError):
                return None

        return wait(told, _READY_S, f"the agent of {name} has read the kubelet's state", 0.5)

    def nodes(self, name: str) -> dict[int, truth.Node]:
        """Its NUMA nodes by its own kernel, read once after each boot."""
        if name not in self.hardware:
            self.hardware[name] = truth.nodes(self.sys(name))
        return self.hardware[name]

    def sys(self, name: str) -> dict[str, str]:
        """Returns texts of /sys of the guest by path, as soon as the agent can read them. Raises LabError."""
        return wait(lambda: self._sys(name), _READY_S, f"the agent of {name} answers", 0.5)

    def _sys(self, name: str) -> dict[str, str] | None:
        try:
            sys: dict[str, str] = self.guests[name].seen("/machine").told["sys"]
        except LabError:
            return None
        return sys

    def differences(self, name: str) -> list[str]:
        """Between its object and itself, now."""
        raw = self.reports.objects.get(name)
        if raw is None:
            return ["there is no object"]
        if unconfirmed := attribute(raw, "topowise.io/unconfirmed"):
            return [f"the object is unconfirmed: {unconfirmed}"]
        return truth.differences(raw, self.nodes(name), self.holding(name))

    def settle(self, seconds: float = _SETTLED_S) -> list[str]:
        """Waits until every object equals its guest; returns the differences that remain at the time limit."""
        deadline = time.monotonic() + seconds
        while True:
            differences = [f"{name}: {difference}" for name in self.guests for difference in self.differences(name)]
            if not differences or time.monotonic() > deadline:
                return differences
            time.sleep(0.2)

    def explain(self, pod: Json) -> dict[str, Json]:
        """Returns the service's explanation by node."""
        url = f"http://127.0.0.1:{self.plan.explaining}/explain"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(pod).encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=20) as answer:
            said = json.load(answer)
        if isinstance(said, dict):
            raise LabError(f"the service does not explain: {said}")
        return {verdict["node"]: verdict for verdict in said}

    def outcome(self, name: str, seconds: float = _OUTCOME_S) -> Json | None:
        """Returns the pod once a kubelet has admitted or refused it, or kube-scheduler has found no node."""

        def decided(pods: Mapping[str, Json]) -> Json | None:
            pod = pods.get(name)
            return pod if pod is not None and is_decided(pod) else None

        return self.pods.until(decided, seconds)

    def live(self, node: str = "") -> list[str]:
        """Pods of a series that are on the node, or anywhere."""
        return [
            name
            for name, pod in list(self.pods.objects.items())
            if LABEL in pod["metadata"].get("labels", {})
            and not pod["metadata"].get("deletionTimestamp")
            and not is_failed(pod)
            and (not node or pod["spec"].get("nodeName") == node)
        ]

    def delete(self, names: list[str]) -> None:
        """And waits until they are gone."""
        for name in names:
            self.api.delete(f"{PODS}/{name}", grace=1)
        self.pods.until(lambda pods: not pods.keys() & set(names), _OUTCOME_S)

    def discard(self, name: str) -> None:
        """Deletes a refused or unassigned pod, without waiting for its end."""
        self.api.delete(f"{PODS}/{name}", grace=1)

    def clear(self) -> None:
        """Without any pod of a series."""
        self.delete(
            [name for name, pod in list(self.pods.objects.items()) if LABEL in pod["metadata"].get("labels", {})]
        )

    def metrics(self, name: str, address: str) -> dict[str, float]:
        """Returns the metrics of a pod on the guest, by name with labels."""
        return by_name(self.guests[name].relayed(f"http://{address}:9153/metrics"))

    def counts(self) -> dict[str, float]:
        """Returns the service's metrics by name with labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.plan.metrics}/metrics", timeout=20) as answer:
            return by_name(answer.read().decode())

    def predictions(self) -> dict[str, float]:
        """Returns the service's own counts of predictions by precision, of verdicts on nodes, and of verdicts that wait
        for a report."""
        counts = self.counts()
        predictions = {
            name.removeprefix(_PREDICTIONS).removesuffix('"}'): count
            for name, count in counts.items()
            if name.startswith(_PREDICTIONS)
        }
        verdicts = {name: count for name, count in counts.items() if name.startswith(_VERDICTS)}
        return {
            **predictions,
            "verdicts": sum(verdicts.values()),
            "waits": sum(count for name, count in verdicts.items() if _WAITS in name),
        }

    def kubectl(self, *arguments: str) -> str:
        """Runs kubectl, and returns its output. Raises LabError."""
        command = [str(controlplane.binaries() / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise LabError(f"kubectl {' '.join(arguments)[:160]} ended with {done.returncode}: {done.stderr[-600:]}")
        return done.stdout


def by_name(metrics: str) -> dict[str, float]:
    """Values of a page of metrics, by name with labels."""
    pairs = (line.rpartition(" ") for line in metrics.splitlines() if line and not line.startswith("#"))
    return {key: float(value) for key, _, value in pairs}


def is_decided(pod: Json) -> bool:
    """Returns whether the pod is decided: by the kubelet in its status, or by kube-scheduler in a condition."""
    status: dict[str, Any] = pod.get("status", {})
    if status.get("phase") in ("Failed", "Running", "Succeeded"):
        return True
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    return "Initialized" in conditions or conditions.get("PodScheduled") == "False"


def is_failed(pod: Json | None) -> bool:
    return pod is not None and pod.get("status", {}).get("phase") == "Failed"


def is_refused(pod: Json) -> bool:
    """Returns whether the kubelet refused the pod. A pod that is deleted before it runs is Failed without a reason."""
    status: Json = pod.get("status", {})
    return is_failed(pod) and bool(status.get("reason"))


def attribute(raw: Json, name: str) -> str:
    """Returns an attribute of an object, "" if it has none of this name."""
    return next((str(entry["value"]) for entry in raw.get("attributes", ()) if entry["name"] == name), "")
