"""Steering: pods go to random NUMA nodes of a real kubelet, by the exporter's marker plug-in.

The part writes the requests as topowise-scheduler does, and binds the pods itself. Pods come one after another, and in
bursts between pods without a marker; the kubelet restarts with a label in force.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from lab import chart, series
from lab.api import NODES, PODS, Json, Watch, wait
from lab.cluster import Lab, is_refused
from lab.errors import LabError
from lab.parts.disturbing import reconfigure
from lab.results import Figure, Part, percentile
from topowise import steering
from topowise.steering import Request, Status

LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{chart.NAMESPACE}/leases"
_POLICIES: Final = ("restricted", "single-numa-node", "best-effort")
_PODS: Final = 34
_BURST: Final = 34
_REQUESTS: Final = 20
_VALUES: Final = {"steering.enabled": True}
_STATUS_S: Final = 40.0
_OTHER: Final = "example.com/gpu"


class Steered:
    """The requests of a guest, and what its kubelet made of the pods."""

    def __init__(self, lab: Lab, node: str, seed: int) -> None:
        self._lab, self.node = lab, node
        self._random = random.Random(seed)
        self._lease = steering.lease_name(node)
        if lab.api.find(f"{LEASES}/{self._lease}") is None:
            lab.api.create(LEASES, {"metadata": {"name": self._lease}})
        self._leases = Watch(lab.api, LEASES)
        self._numa = lab.nodes(node)
        self._wanted: dict[str, int] = {}
        self._used: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.labelled: list[float] = []
        self.problems: list[str] = []

    def end(self) -> None:
        self._leases.end()

    def ask(self, numa: int, containers: int, seconds: float = 30.0) -> Status:
        """Writes a request, and returns its first status. Raises LabError."""
        request = Request(uuid.uuid4().hex[:16], numa, containers, seconds)
        self._write(steering.encode(request))
        sent = time.monotonic()
        status = self.until(request.id, "labelled", "rejected")
        self.labelled.append(time.monotonic() - sent)
        return status

    def withdraw(self, request_id: str) -> Status:
        self._write(None)
        return self.until(request_id, "released")

    def until(self, request_id: str, *states: str) -> Status:
        """Returns the status with one of the states. Raises LabError."""

        def come(leases: dict[str, Json]) -> Status | None:
            text = (leases.get(self._lease, {}).get("metadata", {}).get("annotations") or {}).get(steering.STATUS)
            status = None if text is None else steering.decode_status(text)
            return status if status is not None and status.id == request_id and status.state in states else None

        status = self._leases.until(come, _STATUS_S)
        if status is None:
            raise LabError(f"request {request_id} got none of {states} within {_STATUS_S:.0f} s")
        return status

    def _write(self, text: str | None) -> None:
        self._lab.api.merge(f"{LEASES}/{self._lease}", {"metadata": {"annotations": {steering.REQUEST: text}}})

    def place(self, name: str, *, starts: bool = False) -> None:
        """Steers a pod to a random NUMA node with free CPUs, and waits until its kubelet has taken all its markers."""
        containers = self._random.choice([1, 1, 2])
        candidates = [numa for numa in self._numa if self._free(numa) >= containers]
        if not candidates:
            self.make_room()
            candidates = [numa for numa in self._numa if self._free(numa) >= containers]
        numa = self._random.choice(candidates)
        status = self.ask(numa, containers)
        if status.state == "rejected":
            raise LabError(f"{name}: {status.reason}")
        self._wanted[name], self._used[name] = numa, containers
        self._lab.api.create(PODS, marked(name, self.node, containers, starts=starts))
        self.counts["pods"] += 1
        released = self.until(status.id, "released")
        if "allocated" not in released.reason:
            self.counts["labels that ended by time"] += 1

    def _free(self, numa: int) -> int:
        # A CPU is reserved, and a CPU is left to the pods that have no CPUs of their own.
        reserved = 2 if numa == 0 else 0
        taken = sum(self._used[name] for name, node in self._wanted.items() if node == numa)
        return len(self._numa[numa].cpus) - reserved - taken

    def compare(self) -> None:
        """Counts where the kubelet has put the pods that have not been counted."""
        held = self._lab.holding(self.node).by_uid
        for name in [name for name in self._wanted if f"counted {name}" not in self._used]:
            pod = self._lab.outcome(name)
            if pod is None or is_refused(pod):
                self.counts["refused"] += 1
                status = {} if pod is None else pod["status"]
                self.problems.append(f"{name}: {status.get('reason')}: {status.get('message')}")
                del self._wanted[name], self._used[name]
                continue
            cpus = frozenset[int]().union(*(each.cpus for each in held.get(pod["metadata"]["uid"], {}).values()))
            is_there = bool(cpus) and cpus <= self._numa[self._wanted[name]].cpus
            self.counts["on the chosen NUMA node" if is_there else "elsewhere"] += 1
            if not is_there:
                self.problems.append(f"{name}: CPUs {sorted(cpus)}, expected on NUMA node {self._wanted[name]}")
            self._used[f"counted {name}"] = 0

    def make_room(self) -> None:
        """Compares the pods, and deletes two of three."""
        self.compare()
        names = list(self._wanted)
        gone = self._random.sample(names, max(1, len(names) * 2 // 3))
        self._lab.delete(gone)
        for name in gone:
            del self._wanted[name], self._used[name]


def marked(
    name: str,
    node: str,
    containers: int,
    *,
    starts: bool = False,
    resource: str = steering.RESOURCE,
    cpu: str = "1",
) -> Json:
    """Returns a bound pod with a CPU and a marker (or another device) for each container."""
    sizes = {"cpu": cpu, "memory": "32Mi", **({resource: "1"} if resource else {})}
    spec = {"containers": [series.container(f"c{number}", sizes) for number in range(containers)], "nodeName": node}
    return series.pod(name, "steered", spec, starts=starts)


def steered_pods(lab: Lab) -> Part:
    """Steers pods with three policies, then through restarts of the kubelet; then the same requests without pods."""
    chart.install(lab.kubeconfig, _VALUES)
    chart.until_rolled_out(lab.api)
    figures: dict[str, Figure] = {}
    problems: list[str] = []
    for name in lab.guests:
        for number, policy in enumerate(_POLICIES):
            reconfigure(lab, name, {"topologyManagerPolicy": policy})
            _guard(lab, name, number, figures, problems, policy, _many)
        # Of the three it refuses the most.
        reconfigure(lab, name, {"topologyManagerPolicy": "single-numa-node"})
        _guard(lab, name, 10, figures, problems, "requests without pods", _requests_alone)
        _guard(lab, name, 11, figures, problems, "kubelet restart", _restarts)
        reconfigure(lab, name, {})
    chart.install(lab.kubeconfig)
    chart.until_rolled_out(lab.api)
    return Part("Pods are steered to a NUMA node", not problems, figures, tuple(problems[:40]))


def _guard(
    lab: Lab,
    node: str,
    seed: int,
    figures: dict[str, Figure],
    problems: list[str],
    title: str,
    run: Callable[[Lab, Steered, dict[str, Any]], None],
) -> None:
    until_markers(lab, node)
    steered = Steered(lab, node, seed)
    own: dict[str, Any] = {}
    try:
        run(lab, steered, own)
    except LabError as exc:
        steered.problems.append(str(exc))
    steered.end()
    lab.clear()
    seconds = steered.labelled
    own |= {**steered.counts, "s to labelled, p50": percentile(seconds, 0.5), "p99": percentile(seconds, 0.99)}
    figures.update({f"{title} on {node}: {key}": value for key, value in own.items()})
    problems += [f"{title} on {node}: {problem}" for problem in steered.problems]
    print(f"lab: {title} on {node}: {own} {steered.problems[:5]}", flush=True)


def until_markers(lab: Lab, node: str) -> None:
    """Waits until the kubelet has markers and takes requests: some seconds after its start it does not."""

    def there() -> bool:
        status = (lab.api.find(f"{NODES}/{node}") or {}).get("status", {})
        return int(status.get("allocatable", {}).get(steering.RESOURCE, 0)) > 0

    wait(there, 300, f"{steering.RESOURCE} on {node}", 0.5)
    time.sleep(12)


def _many(lab: Lab, steered: Steered, figures: dict[str, Any]) -> None:
    for number in range(_PODS):
        steered.place(f"alone-{number}")
        steered.compare()
    for number in range(_BURST):
        steered.place(f"burst-{number}")
        if number % 4 == 0:
            lab.api.create(PODS, series.pod(f"other-{number}", "other", _shared(steered.node)))
    steered.compare()


def _shared(node: str) -> Json:
    """Returns the spec of a pod without a marker and without CPUs of its own."""
    return {"containers": [series.container("main", {"cpu": "10m", "memory": "8Mi"})], "nodeName": node}


def _requests_alone(lab: Lab, steered: Steered, figures: dict[str, Any]) -> None:
    nodes = Watch(lab.api, NODES)
    since = time.time()
    for number in range(_REQUESTS):
        status = steered.ask(number % 2, 1)
        steered.withdraw(status.id)
    changes = [item for _, name, item in nodes.since(since) if name == steered.node]
    amounts = {item["status"]["allocatable"].get(steering.RESOURCE) for item in changes}
    nodes.end()
    figures["requests"] = _REQUESTS
    figures["amounts of markers in the Node"] = len(amounts)
    figures["writes of the NodeResourceTopology"] = len(
        [name for _, name, _ in lab.reports.since(since) if name == steered.node]
    )


def _restarts(lab: Lab, steered: Steered, figures: dict[str, Any]) -> None:
    """Running pods on both NUMA nodes, a label in force, and pods whose containers never run, of three kinds."""
    running = [f"runs-{number}" for number in range(3)]
    for name in running:
        steered.place(name, starts=True)
    steered.compare()
    wait(lambda: all(_phase(lab, name) == "Running" for name in running), 240, "the steered pods run")
    kinds = {"with a marker": steering.RESOURCE, "with another device": _OTHER, "with no device": ""}
    never: dict[str, list[str]] = {}
    for place, (kind, resource) in enumerate(kinds.items()):
        never[kind] = [f"never-{place}-{number}" for number in range(2 if resource else 1)]
        for name in never[kind]:
            lab.api.create(PODS, marked(name, steered.node, 1, resource=resource, cpu="100m"))
            lab.outcome(name)
    if refused := sum(_refused(lab, names) for names in never.values()):
        raise LabError(f"{refused} pods were refused before the restart, expected 0")
    for turn in range(3):
        steered.ask(turn % 2, 1)
        lab.restart_kubelet(steered.node)
        until_markers(lab, steered.node)
        lab.until_devices(steered.node)
        figures[f"running pods refused, restart {turn}"] = _refused(lab, running)
    for kind, names in never.items():
        figures[f"of {len(names)} pods {kind} that never ran, refused"] = _refused(lab, names)


def _refused(lab: Lab, names: list[str]) -> int:
    return sum(is_refused(lab.pods.objects[name]) for name in names if name in lab.pods.objects)


def _phase(lab: Lab, name: str) -> str:
    return str(lab.pods.objects.get(name, {}).get("status", {}).get("phase", ""))
