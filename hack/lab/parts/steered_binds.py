"""Steering from end to end: kube-scheduler and topowise-scheduler steer pods to random NUMA nodes of real kubelets.

The guests run at the same time. On each guest, pods come one after another and in bursts, for each policy. Then
kubelets restart and exporters are killed while steered pods run.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from lab import series
from lab.api import NODES, PODS, Json, Watch, wait
from lab.cluster import Lab, is_refused
from lab.parts.disturbing import reconfigure
from lab.parts.steering import until_markers
from lab.results import Figure, Part, percentile
from topowise import steering

_POLICIES: Final = ("restricted", "single-numa-node", "best-effort")
_ALONE: Final = 12
_BURST: Final = 5
_BURSTS: Final = 3
_RUNNING: Final = 3
_ANNOTATION: Final = "topowise.io/numa-node"
# kube-scheduler tries a pod again after a backoff of some seconds.
_PLACED_S: Final = 120.0
_KILL: Final = "pkill -KILL -f '[t]opowise-exporter {}'"


class Steered:
    """The pods of a guest, and the NUMA nodes that they require."""

    def __init__(self, lab: Lab, node: str, label: str, seed: int) -> None:
        self._lab, self.node, self._label = lab, node, label
        self._random = random.Random(seed)
        self._numa = lab.nodes(node)
        self._required: dict[str, tuple[int, int]] = {}
        self._count = 0
        self._undecided: list[tuple[str, float]] = []
        self.counts: Counter[str] = Counter()
        self.bound: list[float] = []
        self.problems: list[str] = []

    def create(self, *, starts: bool = False) -> tuple[str, float]:
        """Creates a pod that requires a random NUMA node with free CPUs; returns its name and the time of creation."""
        containers = self._random.choice([1, 1, 2])
        fitting = [numa for numa in self._numa if self._free(numa) >= containers]
        if not fitting:
            self.make_room()
            fitting = [numa for numa in self._numa if self._free(numa) >= containers]
        numa = self._random.choice(fitting)
        name = f"{self._label}-{self.node}-{self._count}"
        self._count += 1
        self._required[name] = numa, containers
        pod = _marked(name, self.node, containers, starts=starts)
        pod["metadata"]["annotations"] = {_ANNOTATION: str(numa)}
        self.counts["pods"] += 1
        created = time.time()
        self._lab.api.create(PODS, pod)
        return name, created

    def _free(self, numa: int) -> int:
        # A CPU is reserved, and a CPU is left to the pods that have no CPUs of their own.
        reserved = 2 if numa == 0 else 0
        return len(self._numa[numa].cpus) - reserved - sum(size for at, size in self._required.values() if at == numa)

    def expect(self, name: str, created: float) -> None:
        """Waits until the kubelet has decided about the pod, and counts where the pod is."""
        pod = _until_decided(self._lab, name)
        if pod is None or is_refused(pod):
            status = {} if pod is None else pod["status"]
            text = self._lab.pods.objects.get(name, {}).get("status", {}) if pod is None else status
            self.counts["not placed" if pod is None else "refused"] += 1
            self.problems.append(f"{name}: {text.get('reason')}: {text.get('message') or text.get('conditions')}")
            del self._required[name]
            return
        self.bound.append(_bound_at(self._lab, name, created) - created)
        self._compare(name, pod["metadata"]["uid"])

    def _compare(self, name: str, uid: str) -> None:
        def cpus() -> frozenset[int]:
            held = self._lab.holding(self.node).by_uid.get(uid, {})
            return frozenset[int]().union(*(each.cpus for each in held.values()))

        numa, containers = self._required[name]
        # The pod's status may precede the kubelet's state file for a moment.
        wait(lambda: len(cpus()) == containers, 30, f"{name} has {containers} CPUs", 0.1)
        is_there = cpus() <= self._numa[numa].cpus
        self.counts["on the chosen NUMA node" if is_there else "elsewhere"] += 1
        if not is_there:
            self.problems.append(f"{name}: CPUs {sorted(cpus())}, expected on NUMA node {numa}")

    def make_room(self) -> None:
        """Deletes two of three pods, once the kubelet has decided about all pods of a burst."""
        self._settle()
        names = list(self._required)
        gone = self._random.sample(names, max(1, len(names) * 2 // 3))
        self._lab.delete(gone)
        for name in gone:
            del self._required[name]

    def forget(self, name: str) -> None:
        """The pod has been deleted."""
        self._required.pop(name, None)

    def burst(self, pods: int) -> None:
        """Creates pods without waiting for each, and then waits for all."""
        for _ in range(pods):
            # `create` may settle the pods before.
            created = self.create()
            self._undecided.append(created)
        self._settle()

    def _settle(self) -> None:
        undecided, self._undecided = self._undecided, []
        for name, created in undecided:
            self.expect(name, created)

    def refused(self, names: list[str]) -> int:
        refused = [name for name in names if is_refused(self._lab.pods.objects.get(name, {}))]
        self.problems += [f"{name}: {self._lab.pods.objects[name]['status'].get('message')}" for name in refused]
        return len(refused)


def _marked(name: str, node: str, containers: int, *, starts: bool = False, marker: bool = True) -> Json:
    sizes = {"cpu": "1", "memory": "32Mi", **({steering.RESOURCE: "1"} if marker else {})}
    spec = {
        "containers": [series.container(f"c{number}", sizes) for number in range(containers)],
        "nodeSelector": {"kubernetes.io/hostname": node},
    }
    return series.pod(name, "steered", spec, starts=starts)


def _decided(pod: Json | None) -> Json | None:
    """Returns the pod if a kubelet has decided about it; kube-scheduler tries a pod again that it could not bind."""
    status = {} if pod is None else pod.get("status", {})
    is_decided = status.get("phase") in ("Failed", "Running") or any(
        each["type"] == "Initialized" for each in status.get("conditions", ())
    )
    return pod if is_decided else None


def _until_decided(lab: Lab, name: str) -> Json | None:
    return lab.pods.until(lambda pods: _decided(pods.get(name)), _PLACED_S)


def _bound_at(lab: Lab, name: str, since: float) -> float:
    """Returns when the watch showed the pod's node."""
    return next(
        when for when, of_pod, pod in lab.pods.since(since) if of_pod == name and pod.get("spec", {}).get("nodeName")
    )


def steered_binds(lab: Lab) -> Part:
    """Steers pods with three policies, then through restarts."""
    figures: dict[str, Figure] = {}
    problems: list[str] = []
    for number, policy in enumerate(_POLICIES):
        _on_all(lab, partial(reconfigure_guest, lab, policy))
        _on_all(lab, partial(_policy, lab, policy, number, figures, problems))
        lab.clear()
    _on_all(lab, partial(reconfigure_guest, lab, "single-numa-node"))
    _on_all(lab, partial(_restarts, lab, figures, problems))
    for node in lab.guests:
        reconfigure(lab, node, {})
    return Part("Schedulers steer pods to a NUMA node", not problems, figures, tuple(problems[:40]))


def reconfigure_guest(lab: Lab, policy: str, node: str) -> None:
    """Like `reconfigure`, for guests at the same time: all pods are gone already."""
    lab.changed[node] = {"topologyManagerPolicy": policy}
    lab.configure(node)
    lab.restart_kubelet(node, forget=True)
    lab.until_devices(node)
    until_markers(lab, node)


def _on_all(lab: Lab, act: Callable[[str], None]) -> None:
    with ThreadPoolExecutor(len(lab.guests)) as threads:
        list(threads.map(act, lab.guests))


def _policy(lab: Lab, policy: str, seed: int, figures: dict[str, Figure], problems: list[str], node: str) -> None:
    steered = Steered(lab, node, policy, 10 * seed + len(node))
    nodes, since = Watch(lab.api, NODES), time.time()
    for _ in range(_ALONE):
        steered.expect(*steered.create())
    alone = list(steered.bound)
    for _ in range(_BURSTS):
        steered.burst(_BURST)
    changes = [item for _, name, item in nodes.since(since) if name == node]
    nodes.end()
    seconds = time.time() - since
    amounts = {item["status"]["allocatable"].get(steering.RESOURCE) for item in changes}
    lab.delete([name for name in lab.live(node) if name.startswith(policy)])
    plain = _unmarked(lab, node, f"plain-{policy}", 10)
    own: dict[str, Any] = {
        **steered.counts,
        "s to bind alone, p50": percentile(alone, 0.5),
        "p99": percentile(alone, 0.99),
        "s to bind in a burst, p50": percentile(steered.bound[len(alone) :], 0.5),
        "without a marker, p50": percentile(plain, 0.5),
        "without, p99": percentile(plain, 0.99),
        "writes of the Node per minute": round(60 * len(changes) / seconds, 1),
        "amounts of markers in the Node": len(amounts),
    }
    _note(f"{policy} on {node}", own, steered, figures, problems)


def _note(title: str, own: dict[str, Any], steered: Steered, figures: dict[str, Figure], problems: list[str]) -> None:
    figures.update({f"{title}: {key}": value for key, value in own.items()})
    problems += [f"{title}: {problem}" for problem in steered.problems]
    print(f"lab: {title}: {own} {steered.problems[:5]}", flush=True)


def _unmarked(lab: Lab, node: str, label: str, pods: int) -> list[float]:
    """Returns the seconds from creation to bind of pods without a marker."""
    seconds = []
    for number in range(pods):
        name, created = f"{label}-{node}-{number}", time.time()
        lab.api.create(PODS, _marked(name, node, 1, marker=False))
        _until_decided(lab, name)
        seconds.append(_bound_at(lab, name, created) - created)
        lab.delete([name])
    return seconds


def _restarts(lab: Lab, figures: dict[str, Figure], problems: list[str], node: str) -> None:
    """Steered pods run while the kubelet restarts, the exporter is killed, and the marker plug-in is killed."""
    steered = Steered(lab, node, "restart", 5 + len(node))
    running = []
    for _ in range(_RUNNING):
        name, created = steered.create(starts=True)
        steered.expect(name, created)
        running.append(name)
    wait(lambda: all(_phase(lab, name) == "Running" for name in running), 300, f"steered pods of {node} run")
    own: dict[str, Any] = {}

    def note(event: str) -> None:
        own[f"running pods refused, {event}"] = steered.refused(running)
        before = Counter(steered.counts)
        never = [steered.create() for _ in range(2)]
        for name, created in never:
            steered.expect(name, created)
        own[f"next pods on the chosen NUMA node, {event}"] = (
            steered.counts["on the chosen NUMA node"] - before["on the chosen NUMA node"]
        )
        lab.delete([name for name, _ in never])
        for name, _ in never:
            steered.forget(name)

    for turn in range(2):
        lab.restart_kubelet(node)
        until_markers(lab, node)
        note(f"kubelet restart {turn}")
    guest = lab.guests[node]
    guest.run(_KILL.format("run"))
    note("exporter killed")
    guest.run(_KILL.format("steer"))
    wait(lambda: _markers(lab, node) == 0, 60, f"{node} has no markers")
    until_markers(lab, node)
    note("plug-in killed")
    _note(f"restarts on {node}", {**steered.counts, **own}, steered, figures, problems)
    lab.delete(running)


def _markers(lab: Lab, node: str) -> int:
    status = lab.api.call("GET", f"{NODES}/{node}")["status"]
    return int(status["allocatable"].get(steering.RESOURCE, 0))


def _phase(lab: Lab, name: str) -> str:
    return str(lab.pods.objects.get(name, {}).get("status", {}).get("phase", ""))
