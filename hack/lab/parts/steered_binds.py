"""Steering from end to end: kube-scheduler and topowise-scheduler steer pods to random NUMA nodes of real kubelets.

The nodes run at the same time. On each node, pods come one after another and in bursts, for each policy; then equal
pods without a marker, for comparison.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from lab import series
from lab.api import NODES, PODS, Json, Watch, wait
from lab.cluster import Lab, has_outcome, is_refused
from lab.controlplane import LEASES
from lab.parts.disturbing import reconfigure
from lab.results import Figure, Part, percentile
from topowise import steering

_POLICIES: Final = ("restricted", "single-numa-node", "best-effort")
_BURST: Final = 6
ANNOTATION: Final = "topowise.io/numa-node"
ON_CHOSEN: Final = "on the chosen NUMA node"
# kube-scheduler tries a pod again after a backoff of some seconds.
_PLACED_S: Final = 120.0


class Steered:
    """The pods of a node, and the NUMA nodes that they require. The pods' names begin with `label`."""

    def __init__(self, lab: Lab, node: str, label: str, seed: int) -> None:
        self._lab, self.node, self._label = lab, node, label
        self._random = random.Random(seed)
        self._numa = lab.numa_nodes(node)
        self._required: dict[str, tuple[int, int]] = {}
        self._count = 0
        self._undecided: list[tuple[str, float]] = []
        self.counts: Counter[str] = Counter()
        self.bound: list[float] = []
        self.problems: list[str] = []

    def create(self, numa: int | None = None, containers: int = 0, *, starts: bool = False) -> tuple[str, float]:
        """Creates a pod that requires a NUMA node, by default a random NUMA node with free CPUs; returns its name and
        the time of creation."""
        containers = containers or self._random.choice([1, 1, 2])
        if numa is None:
            numa = self._random_numa_node(containers)
        name = f"{self._label}-{self.node}-{self._count}"
        self._count += 1
        self._required[name] = numa, containers
        pod = marked(name, self.node, containers, numa, starts=starts)
        self.counts["pods"] += 1
        created = time.time()
        self._lab.create(pod)
        return name, created

    def _random_numa_node(self, containers: int) -> int:
        fitting = [numa for numa in self._numa if self.free(numa) >= containers]
        if not fitting:
            self.make_room()
            fitting = [numa for numa in self._numa if self.free(numa) >= containers]
        return self._random.choice(fitting)

    def free(self, numa: int) -> int:
        """Returns the number of CPUs that pods can have."""
        # A CPU is reserved, and a CPU is left to the pods that have no CPUs of their own.
        capacity = len(self._numa[numa].cpus) - (2 if numa == 0 else 0)
        return capacity - sum(size for at, size in self._required.values() if at == numa)

    def expect(self, name: str, created: float) -> None:
        """Waits until the kubelet has decided about the pod, and counts where the pod is."""
        pod = until_decided(self._lab, name)
        if pod is None or is_refused(pod):
            status = {} if pod is None else pod["status"]
            text = self._lab.pods.objects.get(name, {}).get("status", {}) if pod is None else status
            self.counts["not placed" if pod is None else "refused"] += 1
            self.problems.append(f"{name}: {text.get('reason')}: {text.get('message') or text.get('conditions')}")
            del self._required[name]
            return
        self.bound.append(self._lab.bound_at(name, created) - created)
        self._compare(name, pod["metadata"]["uid"])

    def _compare(self, name: str, uid: str) -> None:
        def cpus() -> frozenset[int]:
            held = self._lab.holding(self.node).by_uid.get(uid, {})
            return frozenset[int]().union(*(each.cpus for each in held.values()))

        numa, containers = self._required[name]
        # The pod's status may precede the kubelet's state file for a moment.
        wait(lambda: len(cpus()) == containers, 30, f"{name} has {containers} CPUs", 0.1)
        is_there = cpus() <= self._numa[numa].cpus
        self.counts[ON_CHOSEN if is_there else "elsewhere"] += 1
        if not is_there:
            self.problems.append(f"{name}: CPUs {sorted(cpus())}, expected on NUMA node {numa}")

    def make_room(self) -> None:
        """Deletes two of three pods, once the kubelet has decided about all pods of a burst."""
        self._settle()
        names = list(self._required)
        gone = self._random.sample(names, max(1, len(names) * 2 // 3))
        self._lab.delete(gone)
        self.forget(gone)

    def forget(self, names: list[str]) -> None:
        """The pods have been deleted."""
        for name in names:
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


def marked(
    name: str, node: str, containers: int, numa: int | None = None, *, starts: bool = False, marker: bool = True
) -> Json:
    """Returns a pod with a CPU and a marker for each container, which requires a NUMA node, or no NUMA node."""
    sizes = {"cpu": "1", "memory": "32Mi", **({steering.RESOURCE: "1"} if marker else {})}
    spec = {
        "containers": [series.container(f"c{number}", sizes) for number in range(containers)],
        "nodeSelector": {"kubernetes.io/hostname": node},
    }
    pod = series.pod(name, "steered", spec, starts=starts)
    if numa is not None:
        pod["metadata"]["annotations"] = {ANNOTATION: str(numa)}
    return pod


def until_decided(lab: Lab, name: str, seconds: float = _PLACED_S) -> Json | None:
    """Waits until a kubelet has decided about the pod; returns None after the time limit."""
    return lab.pods.until(lambda pods: pods[name] if has_outcome(pods.get(name, {})) else None, seconds)


def steered_binds(lab: Lab) -> Part:
    """Steers pods with three policies."""
    figures: dict[str, Figure] = {}
    problems: list[str] = []
    for number, policy in enumerate(_POLICIES):
        on_all(lab, partial(reconfigure_node, lab, policy))
        on_all(lab, partial(_policy, lab, policy, number, figures, problems))
        lab.clear()
    for node in lab.nodes:
        reconfigure(lab, node, {})
    return Part("Schedulers steer pods to a NUMA node", not problems, figures, tuple(problems[:40]))


def reconfigure_node(lab: Lab, policy: str, node: str) -> None:
    """Like `reconfigure`, for nodes at the same time: all pods are gone already."""
    lab.changed[node] = {"topologyManagerPolicy": policy}
    lab.configure(node)
    lab.restart_kubelet(node, forget=True)
    lab.until_devices(node)
    until_markers(lab, node)


def until_markers(lab: Lab, node: str) -> None:
    """Waits until the kubelet has markers and takes requests: some seconds after its start it does not."""

    def there() -> bool:
        status = (lab.api.find(f"{NODES}/{node}") or {}).get("status", {})
        return int(status.get("allocatable", {}).get(steering.RESOURCE, 0)) > 0

    wait(there, 300, f"{steering.RESOURCE} on {node}", 0.5)
    time.sleep(12)


def on_all(lab: Lab, act: Callable[[str], None]) -> None:
    """Runs `act` for all nodes at the same time."""
    with ThreadPoolExecutor(len(lab.nodes)) as threads:
        list(threads.map(act, lab.nodes))


def _policy(lab: Lab, policy: str, seed: int, figures: dict[str, Figure], problems: list[str], node: str) -> None:
    steered = Steered(lab, node, policy, 10 * seed + len(node))
    leases = Watch(lab.api, LEASES)
    since = time.time()
    for _ in range(lab.steered // 2):
        steered.expect(*steered.create())
    alone = list(steered.bound)
    for _ in range((lab.steered - len(alone)) // _BURST):
        steered.burst(_BURST)
    lab.delete([name for name in lab.live(node) if name.startswith(policy)])
    plain = _unmarked(lab, node, f"plain-{policy}")
    leases.end()
    seconds = {
        "from request to label": label_seconds(leases.since(since), steering.lease_name(node)),
        "to bind alone": alone,
        "to bind in a burst": steered.bound[len(alone) :],
        "to bind alone without a marker": plain,
    }
    own: dict[str, Any] = dict(steered.counts)
    for title, values in seconds.items():
        own |= {f"s {title}, p50": percentile(values, 0.5), f"s {title}, p99": percentile(values, 0.99)}
    note(f"{policy} on {node}", own, steered, figures, problems)


def label_seconds(changes: Iterable[tuple[float, str, Json]], lease: str) -> list[float]:
    """Returns the seconds from each request in a Lease to its status `labelled`, which the plug-in writes when the
    kubelet's podresources show the label."""
    sent: dict[str, float] = {}
    labelled: dict[str, float] = {}
    for when, name, item in changes:
        annotations = item["metadata"].get("annotations") or {}
        if name != lease:
            continue
        if text := annotations.get(steering.REQUEST):
            sent.setdefault(steering.decode_request(text).id, when)
        if text := annotations.get(steering.STATUS):
            status = steering.decode_status(text)
            if status.state == "labelled" and status.id in sent:
                labelled.setdefault(status.id, when)
    return [when - sent[request_id] for request_id, when in labelled.items()]


def note(title: str, own: dict[str, Any], steered: Steered, figures: dict[str, Figure], problems: list[str]) -> None:
    """Adds the figures and problems of a node, and prints them."""
    figures.update({f"{title}: {key}": value for key, value in own.items()})
    problems += [f"{title}: {problem}" for problem in steered.problems]
    print(f"lab: {title}: {own} {steered.problems[:5]}", flush=True)


def _unmarked(lab: Lab, node: str, label: str) -> list[float]:
    """Returns the seconds from creation to bind of pods without a marker."""
    seconds = []
    for number in range(lab.steered // 3):
        name, created = f"{label}-{node}-{number}", time.time()
        lab.api.create(PODS, marked(name, node, 1, marker=False))
        until_decided(lab, name)
        seconds.append(lab.bound_at(name, created) - created)
        lab.delete([name])
    return seconds
