"""A lab that runs: its API server, its nodes, and what tests ask of both."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lab import controlplane, machine, node, truth
from lab.api import NODES, PODS, Json, LabError, Watch, wait
from lab.node import STATE_FILES, Node
from lab.running import Plan, Processes
from lab.series import LABEL
from sandbox.controlplane import token_of
from topowise import nrt
from topowise.errors import ParseError
from topowise.placement import GATE

_READY_S: Final = 300.0
# A kubelet that is stopped between the two writes of an allocation does not start again (policy_static.go,
# validateState), until the file is removed.
_DISAGREES: Final = "the expected machine state is different from the real one"
_STARTING_S: Final = 120.0
_SETTLED_S: Final = 90.0
_OUTCOME_S: Final = 60.0
# After a reboot the kubelet starts the containers of device plug-ins some seconds after it has admitted its pods.
_CONTAINERS_S: Final = 5.0
_PREDICTIONS: Final = 'topowise_scheduler_predictions_total{precision="'
_VERDICTS: Final = "topowise_scheduler_verdicts_total"
_WAITS: Final = "waiting for a"
_RUNTIME: Final = "runtime"
STEERED: Final = 72
CLAIMED: Final = 200


class Lab:
    """`setting` are the fields of KubeletConfiguration of the whole test, `changed` the fields that a part has set, by
    node, in addition; `steered` is the number of pods that are steered by policy and node, `claimed` the number of
    pods with claims by way; `by_gate`: pods of series and steered pods are placed by scheduling gate; `disagreements`
    counts kubelets that their own memory_manager_state kept from starting, so that it was removed, as an operator has
    to."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory, self.plan = directory, plan
        self.processes = Processes(directory)
        self.api = controlplane.client(plan.api)
        self.kubeconfig = directory / "kubeconfig"
        self.machines = {Path(name).stem: machine.read(name) for name in plan.kubelets}
        self.nodes = {Path(name).stem: Node(Path(name).stem, directory, port) for name, port in plan.kubelets.items()}
        self.setting: Json = {}
        self.changed: dict[str, Json] = {name: {} for name in self.nodes}
        self.hardware: dict[str, dict[int, truth.Node]] = {}
        self.disagreements = 0
        self.steered = STEERED
        self.claimed = CLAIMED
        self.by_gate = False

    def watch(self) -> None:
        """Starts the watches of objects and pods."""
        self.reports, self.pods = Watch(self.api, nrt.PATH), Watch(self.api, PODS)

    def power_on(self, name: str) -> None:
        """Starts the name spaces and the container runtime."""
        each = self.nodes[name]
        self.processes.start(f"node-{name}", node.first_process(each))
        each.until_booted()
        self._serve(name, _RUNTIME)
        each.until_runtime()

    def join(self, name: str) -> None:
        """Starts the kubelet, and then the services that are containers on a real node."""
        user = controlplane.node_user(name)
        config = machine.kubeconfig(self.plan.api, controlplane.certificate(self.directory), token_of(user))
        self.configure(name)
        self.nodes[name].write({machine.KUBECONFIG: json.dumps(config)})
        self.nodes[name].start_kubelet()
        time.sleep(_CONTAINERS_S)
        for service in self._services(name):
            if service != _RUNTIME:
                self._serve(name, service)

    def _services(self, name: str) -> dict[str, list[str]]:
        return node.services(self.nodes[name], self.machines[name])

    def _serve(self, name: str, service: str) -> None:
        command = node.kept(self.nodes[name], service, self._services(name)[service])
        self.processes.start(f"{name}-{service}", command)

    def reboot(self, name: str) -> None:
        """Ends all processes of the node, and starts it with another boot id and without containers."""
        self.processes.stop(f"node-{name}")
        self.nodes[name].boot()
        self.power_on(name)
        since = now()
        self.join(name)
        self.until_ready(name, since)
        self.until_devices(name)

    def plugin_starts(self, name: str) -> int:
        """Returns how often the device plug-ins have started, by their logs."""
        logs = self.directory.glob(f"{name}-plugin-*.log")
        return sum(log.read_text().count("devices {") for log in logs)

    def configure(self, name: str) -> None:
        """Writes the configuration of its kubelet."""
        changed = {**self.setting, **self.changed[name]}
        configuration = machine.configuration(self.machines[name], self.nodes[name].port, changed)
        self.nodes[name].write({machine.CONFIG: json.dumps(configuration, indent=1)})

    def restart_kubelet(self, name: str, *, forget: bool = False) -> None:
        """Restarts the kubelet; `forget` removes its state files, as a change of policies requires."""
        each = self.nodes[name]
        each.stop_kubelet(STATE_FILES if forget else ())
        # The last heartbeat of the old kubelet may have devices that the new kubelet does not know yet.
        since, before = now(), each.log.stat().st_size
        each.start_kubelet()
        try:
            self.until_ready(name, since, _STARTING_S)
        except LabError:
            if _DISAGREES not in each.log.read_text(errors="replace")[before:]:
                raise
            self.disagreements += 1
            each.stop_kubelet(STATE_FILES[1:])
            each.start_kubelet()
            self.until_ready(name, now())

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
        """Returns the kubelet's state, as soon as it can be read. Raises LabError."""

        def told() -> truth.Truth | None:
            try:
                return truth.read(self.nodes[name].seen())
            except (LabError, KeyError, ParseError):
                return None

        return wait(told, _READY_S, f"the kubelet of {name} tells its state", 0.5)

    def numa_nodes(self, name: str) -> dict[int, truth.Node]:
        """Returns its NUMA nodes by its /sys, which is read once."""
        if name not in self.hardware:
            self.hardware[name] = truth.nodes(self.nodes[name].sys())
        return self.hardware[name]

    def differences(self, name: str) -> list[str]:
        """Between its object and itself, now."""
        raw = self.reports.objects.get(name)
        if raw is None:
            return ["there is no object"]
        if unconfirmed := attribute(raw, "topowise.io/unconfirmed"):
            return [f"the object is unconfirmed: {unconfirmed}"]
        return truth.differences(raw, self.numa_nodes(name), self.holding(name))

    def settle(self, seconds: float = _SETTLED_S) -> list[str]:
        """Waits until every object equals its node; returns the differences that remain at the time limit."""
        deadline = time.monotonic() + seconds
        while True:
            differences = [f"{name}: {difference}" for name in self.nodes for difference in self.differences(name)]
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

    def create(self, pod: Json) -> None:
        """Creates a pod, with the scheduling gate if pods are placed by gate."""
        gated = {"schedulingGates": [{"name": GATE}], "schedulerName": controlplane.ALONE} if self.by_gate else {}
        self.api.create(PODS, {**pod, "spec": {**pod["spec"], **gated}})

    def outcome(self, name: str, seconds: float = _OUTCOME_S) -> Json | None:
        """Returns the pod once a kubelet has admitted or refused it, or kube-scheduler has found no node."""

        def decided(pods: Mapping[str, Json]) -> Json | None:
            pod = pods.get(name)
            return pod if pod is not None and is_decided(pod) else None

        return self.pods.until(decided, seconds)

    def bound_at(self, name: str, since: float) -> float:
        """Returns when the watch showed the pod's node, now if it has not."""
        changes = self.pods.since(since)
        return next((when for when, of, pod in changes if of == name and pod["spec"].get("nodeName")), time.time())

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


def now() -> str:
    """Returns the time as heartbeats have it: in whole seconds, so rounded up to the next second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))


def by_name(metrics: str) -> dict[str, float]:
    """Values of a page of metrics, by name with labels."""
    pairs = (line.rpartition(" ") for line in metrics.splitlines() if line and not line.startswith("#"))
    return {key: float(value) for key, _, value in pairs}


def has_outcome(pod: Json) -> bool:
    """Returns whether a kubelet has admitted or refused the pod."""
    status: Json = pod.get("status", {})
    is_admitted = any(condition["type"] == "Initialized" for condition in status.get("conditions", ()))
    return is_admitted or status.get("phase") in ("Failed", "Running", "Succeeded")


def is_decided(pod: Json) -> bool:
    """Returns whether the pod is decided: by the kubelet, or by kube-scheduler in a condition."""
    conditions = {condition["type"]: condition["status"] for condition in pod.get("status", {}).get("conditions", ())}
    return has_outcome(pod) or conditions.get("PodScheduled") == "False"


def is_failed(pod: Json | None) -> bool:
    return pod is not None and pod.get("status", {}).get("phase") == "Failed"


def is_refused(pod: Json) -> bool:
    """Returns whether the kubelet refused the pod. A pod that is deleted before it runs is Failed without a reason."""
    status: Json = pod.get("status", {})
    return is_failed(pod) and bool(status.get("reason"))


def attribute(raw: Json, name: str) -> str:
    """Returns an attribute of an object, "" if it has none of this name."""
    return next((str(entry["value"]) for entry in raw.get("attributes", ()) if entry["name"] == name), "")
