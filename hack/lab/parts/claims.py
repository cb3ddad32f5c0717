"""Claims (DRA) beside CPUs and memory of real kubelets: placed by gate, steered and not, and without topowise.

Pods come in waves, a third of them without claims, and after each wave two of three pods end. The same pods come in
each way. Where a pod is, its kubelet's podresources, the DRA driver and the claim say, and all three must agree.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from typing import Any, Final, NamedTuple

from lab import controlplane, results, series, truth
from lab.api import PODS, Json, until_still
from lab.cluster import Lab, is_refused
from lab.parts.steered_binds import until_markers
from lab.results import Figure, Part
from topowise import steering
from topowise.placement import GATE

GROUP: Final = "/apis/resource.k8s.io/v1"
CLASSES: Final = f"{GROUP}/deviceclasses"
TEMPLATES: Final = f"{GROUP}/namespaces/default/resourceclaimtemplates"
CLAIMS: Final = f"{GROUP}/namespaces/default/resourceclaims"
_ALIGNMENT: Final = "topowise.io/claim-alignment"
_MOST_DEVICES: Final = 4
# A wave is so large that the pods of two waves need about half of the CPUs.
_CPUS_PER_POD: Final = 11
_STILL_S: Final = 8.0
_DECIDED_S: Final = 90.0
_EXAMPLES: Final = 20
# Waves from one run of doctor to the next.
_DOCTOR_EVERY: Final = 2


_COUNTS: Final = {
    'topowise_scheduler_placements_total{outcome="': "placements",
    'topowise_scheduler_steering_requests_total{result="': "labels",
}


class Way(NamedTuple):
    """How the pods of a turn are placed. A kube-scheduler without topowise binds them."""

    title: str
    is_gated: bool = True
    has_markers: bool = False
    alignment: str = "prefer"


WAYS: Final = (
    Way("without topowise", is_gated=False),
    Way("prefer"),
    Way("require", alignment="require"),
    Way("steered, prefer", has_markers=True),
    Way("steered, require", has_markers=True, alignment="require"),
)


def claims(lab: Lab) -> Part:
    """Places the pods in each way. All must be aligned if alignment is required, and no way may lose a pod."""
    drivers = {name: machine.claims.driver for name, machine in lab.machines.items() if machine.claims is not None}
    _create(lab, next(iter(drivers.values())))
    for name in drivers:
        until_markers(lab, name)
    figures: dict[str, Figure] = {}
    problems: list[str] = []
    for way in WAYS:
        _place(lab, list(drivers), way, figures, problems)
    return Part("Claimed devices beside CPUs and memory", not problems, figures, tuple(problems))


def _place(lab: Lab, names: list[str], way: Way, figures: dict[str, Figure], problems: list[str]) -> None:
    """Adds the figures and the problems of a way, and prints them with pods that are not near their devices."""
    turn = _Turn(lab, names, way)
    turn.run()
    own = turn.figures()
    figures.update({f"{way.title}: {key}": value for key, value in own.items()})
    problems += [f"{way.title}: {problem}" for problem in turn.problems[:_EXAMPLES]]
    print(f"lab: {way.title}: {own} {turn.problems[:5]} {turn.notes[:8]}", flush=True)


def _create(lab: Lab, driver: str) -> None:
    """Creates the class and the templates, for claims of devices below a single root complex."""
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    objects: list[tuple[str, str, str, Json]] = [(CLASSES, "DeviceClass", "gpu", {"selectors": [selector]})]
    constraint = {"requests": ["gpus"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
    for count in range(1, _MOST_DEVICES + 1):
        request = {"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": count}}
        devices = {"requests": [request], "constraints": [constraint]}
        objects.append((TEMPLATES, "ResourceClaimTemplate", f"gpus-{count}", {"spec": {"devices": devices}}))
    for path, kind, name, spec in objects:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        if lab.api.find(f"{path}/{name}") is None:
            lab.api.create(path, body)


def claiming(name: str, devices: int, cpus: int, way: Way) -> Json:
    """Returns a pod with whole CPUs; with `devices` it has a claim for so many."""
    sizes = {"cpu": str(cpus), "memory": "256Mi", **({steering.RESOURCE: "1"} if way.has_markers else {})}
    container = series.container("main", sizes)
    spec: Json = {"containers": [container], "schedulerName": controlplane.ALONE}
    if way.is_gated:
        spec["schedulingGates"] = [{"name": GATE}]
    if devices:
        container["resources"] = {**container["resources"], "claims": [{"name": "gpus"}]}
        spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": f"gpus-{devices}"}]
    pod = series.pod(name, "claims", spec, starts=True)
    if devices:
        pod["metadata"]["annotations"] = {_ALIGNMENT: way.alignment}
    return pod


class Seen(NamedTuple):
    """A running pod: its number of exclusive CPUs by NUMA node, and the NUMA nodes of its memory, of each claimed
    device, and of its prediction."""

    node: str
    cpus: Counter[int]
    memory: frozenset[int]
    devices: dict[str, int]
    predicted: frozenset[int]

    @property
    def is_aligned(self) -> bool:
        """Returns whether its CPUs and memory are on the NUMA nodes of its devices."""
        return self.cpus.keys() | self.memory <= set(self.devices.values())


class _Turn:
    """The pods of a way. `running` are the pods that run."""

    def __init__(self, lab: Lab, names: list[str], way: Way) -> None:
        self._lab, self._names, self._way = lab, names, way
        self._numa = {name: truth.functions(lab.nodes[name].sys()) for name in names}
        self._random = random.Random(7)
        self._wave = max(3, sum(lab.machines[name].cpus for name in names) // _CPUS_PER_POD)
        self._created: dict[str, tuple[float, int]] = {}
        self._running: dict[str, Seen] = {}
        self._counts: Counter[str] = Counter()
        self._waited: set[str] = set()
        self._left = 0
        self._seconds: list[float] = []
        self._before = _metrics(lab)
        self._prefix = f"claims-{WAYS.index(way)}"
        self.problems: list[str] = []
        self.notes: list[str] = []

    def run(self) -> None:
        number = 0
        while sum(devices > 0 for _, devices in self._created.values()) < self._lab.claimed:
            names = []
            for _ in range(self._wave):
                devices = self._random.randint(1, _MOST_DEVICES) if number % 3 else 0
                pod = claiming(f"{self._prefix}-{number}", devices, self._random.randint(2, 6), self._way)
                number += 1
                names.append(pod["metadata"]["name"])
                self._created[names[-1]] = time.time(), devices
                self._lab.api.create(PODS, pod)
            self._waited.update(until_still(self._pending, _STILL_S, _DECIDED_S))
            self._look()
            if number // self._wave % _DOCTOR_EVERY == 0:
                self._doctor()
            self._end(self._random.sample(sorted(self._running), len(self._running) * 2 // 3))
        # The last pods run when all other pods have ended.
        for _ in range(self._wave):
            if not self._pending():
                break
            self._end(list(self._running))
            self._waited.update(until_still(self._pending, _STILL_S, _DECIDED_S))
            self._look()
        left = self._pending()
        self._left = len(left)
        self.problems += [f"{name} waits, although all other pods have ended" for name in left]
        self._lab.clear()

    def _pending(self) -> list[str]:
        """Returns pods that neither run nor have failed."""
        return [
            name
            for name, pod in list(self._lab.pods.objects.items())
            if name in self._created and pod.get("status", {}).get("phase") not in ("Running", "Failed")
        ]

    def _look(self) -> None:
        """Notes where the pods are that have begun to run."""
        if different := self._lab.settle():
            self.problems += [f"an object differs: {text}" for text in different[:2]]
        truths = {name: self._lab.holding(name) for name in self._names}
        pods = {name: pod for name, pod in list(self._lab.pods.objects.items()) if name in self._created}
        for name, pod in pods.items():
            if is_refused(pod):
                self._counts["refused"] += 1
                status = pod["status"]
                # kube-scheduler alone does not know NUMA nodes.
                if self._way.is_gated:
                    self.problems.append(f"{name} is refused: {status.get('reason')}: {status.get('message')}")
                self._lab.discard(name)
        begun = [name for name, pod in pods.items() if pod["status"].get("phase") == "Running"]
        new = {
            name: self._seen(pods[name], truths[pods[name]["spec"]["nodeName"]])
            for name in begun
            if name not in self._running
        }
        self._running |= new
        for name, seen in new.items():
            self._note(name, seen)

    def _seen(self, pod: Json, actual: truth.Truth) -> Seen:
        name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
        held = actual.listed.get(("default", name), {}).values()
        cpus = frozenset[int]().union(*(each.cpus for each in held))
        memory = {numa for each in held for _, where, _ in each.memory for numa in where}
        by_claim = actual.claimed.get(("default", name), {})
        devices = frozenset[str]().union(*by_claim.values())
        self._agree(name, pod, by_claim, actual)
        numa = self._numa[node]
        counts = Counter(at for at, each in self._lab.numa_nodes(node).items() for _ in each.cpus & cpus)
        return Seen(
            node,
            counts,
            frozenset(memory),
            {device: numa[device] for device in devices},
            frozenset(at for each in truth.predicted(pod).values() for at in each.numa),
        )

    def _agree(self, name: str, pod: Json, by_claim: dict[str, frozenset[str]], actual: truth.Truth) -> None:
        """Compares the devices in podresources with the driver's and the claim's. No device may be given twice."""
        expected = self._created[name][1]
        for status in pod["status"].get("resourceClaimStatuses", ()):
            claim = self._lab.api.find(f"{CLAIMS}/{status['resourceClaimName']}") or {}
            allocated = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
            devices = frozenset(result["device"] for result in allocated)
            listed = by_claim.get(status["resourceClaimName"], frozenset())
            prepared = actual.prepared.get(status["resourceClaimName"], frozenset())
            if len(devices) != expected or devices != listed or devices != prepared:
                self.problems.append(
                    f"{name}: {sorted(devices)} allocated, {sorted(listed)} in podresources, {sorted(prepared)} "
                    f"prepared, expected {expected} devices"
                )
        shared = {
            other
            for other, devices in actual.claimed.items()
            if other[1] != name
            for ids in by_claim.values()
            if ids & frozenset[str]().union(*devices.values())
        }
        if shared:
            self.problems.append(f"{name} has devices of {sorted(shared)}")

    def _note(self, name: str, seen: Seen) -> None:
        created, devices = self._created[name]
        self._seconds.append(self._lab.bound_at(name, created) - created)
        predicted = len(seen.predicted) == 1 and self._way.is_gated
        if predicted and not self._way.has_markers:
            is_right = seen.predicted == frozenset(seen.cpus)
            self._counts["predictions of CPUs"] += 1
            self._counts["predictions of CPUs that missed"] += not is_right
        if not devices:
            self._counts["pods without claims"] += 1
            return
        self._counts["pods with claims"] += 1
        self._counts["aligned"] += seen.is_aligned
        if not seen.is_aligned:
            text = (
                f"{name} on {seen.node}: CPUs {dict(seen.cpus)}, memory {sorted(seen.memory)}, devices {seen.devices}, "
                f"predicted {sorted(seen.predicted)}"
            )
            self.notes.append(text)
            if self._way.alignment == "require":
                self.problems.append(text)

    def _doctor(self) -> None:
        """Compares the pods that doctor names with the pods that are not near their devices."""
        apart = {name for name, seen in self._running.items() if seen.devices and not seen.is_aligned}
        named = doctor(self._lab)
        self._counts["runs of doctor"] += 1
        self._counts["pods that doctor named"] += len(named)
        # A pod that has just begun to run is not looked at yet.
        for name in sorted((named.keys() & self._running.keys()) ^ apart):
            self.problems.append(f"doctor says of {name}: {named.get(name)!r}, seen {self._running.get(name)}")

    def _end(self, names: list[str]) -> None:
        self._lab.delete(names)
        for name in names:
            del self._running[name]

    def figures(self) -> dict[str, Figure]:
        """Returns the counts of the way."""
        after = _metrics(self._lab)
        ran = self._counts["pods with claims"]
        shown = {
            "pods with claims": ran,
            "aligned": self._counts["aligned"],
            "aligned, %": round(100 * self._counts["aligned"] / ran, 1) if ran else "-",
            "pods without claims": self._counts["pods without claims"],
            "refused": self._counts["refused"],
            "waited for an end": len(self._waited),
            "left waiting": self._left,
            "s to bind, p50": results.percentile(self._seconds, 0.5),
            "bind, p99": results.percentile(self._seconds, 0.99),
            **{key: count for key, count in sorted(self._counts.items()) if key.startswith("predictions")},
            "runs of doctor": self._counts["runs of doctor"],
            "pods that doctor named": self._counts["pods that doctor named"],
        }
        increase = {name: int(after[name] - self._before.get(name, 0)) for name in after}
        return {**shown, **{name: count for name, count in increase.items() if count}}


def doctor(lab: Lab) -> dict[str, str]:
    """Returns the pods that `kubectl topowise doctor` finds apart from their claimed devices, and what it says."""
    command = [sys.executable, "-m", "topowise_scheduler.kubectl", "doctor", "-o", "json"]
    path = f"{controlplane.binaries()}:{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(lab.kubeconfig), "PATH": path}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environment)
    findings: list[Any] = json.loads(done.stdout)
    claims_ = [each for each in findings if each["check"] == "claims"]
    return {name.partition("/")[2]: each["value"] for each in claims_ for name in each["names"]}


def _metrics(lab: Lab) -> dict[str, float]:
    """Returns the service's counts of placements and of labels."""
    counts = lab.counts()
    return {
        f"{name} {labels[:-2]}": count
        for key, count in counts.items()
        for prefix, name in _COUNTS.items()
        if (labels := key.removeprefix(prefix)) != key
    }
