"""Series: the policies of the kubelet, each a series of its own, and the pods of a series.

Pods are made from a number, so that a series can be run again; they are of all kinds that a kubelet treats apart.
Nearly all of them name a runtime that no node has: the kubelet admits such a pod, gives it what it asks for, and never
starts it, so that a series takes minutes. Sizes follow the machine, so that some fit nowhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from lab.machine import Machine

Json = dict[str, Any]


def _topology(policy: str, scope: str, **options: str) -> Json:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return {
        "topologyManagerPolicy": policy,
        "topologyManagerScope": scope,
        "topologyManagerPolicyOptions": named,
    }


def _cpus(**options: str) -> Json:
    return {"cpuManagerPolicyOptions": {name.replace("_", "-"): value for name, value in options.items()}}


# In the order in which they run: what differs most first, if time is short.
SETTINGS: Final[dict[str, Json]] = {
    "restricted, container": _topology("restricted", "container"),
    "single-numa-node, container": _topology("single-numa-node", "container"),
    "single-numa-node, pod": _topology("single-numa-node", "pod"),
    "best-effort, container": _topology("best-effort", "container"),
    "restricted, pod, prefer-closest-numa-nodes": _topology("restricted", "pod", prefer_closest_numa_nodes="true"),
    "restricted, container, full-pcpus-only": {
        **_topology("restricted", "container"),
        **_cpus(full_pcpus_only="true"),
    },
    "best-effort, pod, distribute-cpus-across-numa": {
        **_topology("best-effort", "pod"),
        **_cpus(distribute_cpus_across_numa="true"),
    },
    "none, container": _topology("none", "container"),
}


NEVER_STARTS: Final = "lab-never-starts"
IMAGE: Final = "lab"
LABEL: Final = "lab-series"
# The default share of pods that run: each takes as long as ten pods that are only admitted.
STARTED: Final = 0.02


def runtime_class() -> Json:
    """That of pods which are admitted alone."""
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": NEVER_STARTS},
        "handler": NEVER_STARTS,
    }


class Series:
    """Random pods for a machine, equal for equal numbers; their names begin with `name`, and a share `started` runs."""

    def __init__(self, machine: Machine, seed: int, name: str, started: float = STARTED) -> None:
        self._random = random.Random(seed)
        self._name, self._started = name, started
        self._resources = [plugin.resource for plugin in machine.devices]
        self._most_cpus = max(2, machine.cpus * 2 // 3)
        self._most_memory = max(node.memory for node in machine.nodes) * 3 // 4
        self._most_pages = max(node.hugepages_2mi for node in machine.nodes) * 3 // 2

    def pods(self, count: int) -> Iterator[Json]:
        """Yields the first `count` pods."""
        weights = [weight for weight, _ in _KINDS.values()]
        for number in range(count):
            (kind,) = self._random.choices(list(_KINDS), weights)
            spec = _KINDS[kind][1](self)
            yield pod(f"{self._name}-{number}", kind, spec, starts=self._random.random() < self._started)

    def one(self) -> Json:
        """Whole CPUs."""
        return {"containers": [container("main", self._large())]}

    def shared(self) -> Json:
        """Guaranteed, and CPUs that are not its own."""
        return {"containers": [container("main", {**self._large(), "cpu": self._any(["250m", "500m", "1500m"])})]}

    def several(self) -> Json:
        count = self._random.choice([2, 2, 3, 4])
        return {"containers": [container(f"main-{number}", self._small()) for number in range(count)]}

    def after_init(self) -> Json:
        """Containers that get what init containers had."""
        count = self._random.choice([1, 1, 2])
        first = [container(f"init-{number}", self._small(), ["true"]) for number in range(count)]
        return {"initContainers": first, **self.several()}

    def with_sidecar(self) -> Json:
        sidecar = {**container("sidecar", self._small()), "restartPolicy": "Always"}
        return {"initContainers": [sidecar], "containers": [container("main", self._small())]}

    def burstable(self) -> Json:
        """Devices alone, of a pod that has no CPUs of its own."""
        limits = self._devices(0.9)
        resources = {"limits": limits, "requests": {"cpu": "100m", "memory": "64Mi", **limits}}
        return {"containers": [{**container("main", {}), "resources": resources}]}

    def best_effort(self) -> Json:
        return {"containers": [{**container("main", {}), "resources": {}}]}

    def _large(self) -> Json:
        cpus = self._random.choice([1, 1, 2, 2, 3, 4, *range(2, self._most_cpus + 1)])
        memory = int(self._random.triangular(64, self._most_memory, 256))
        return self._sizes(cpus, memory, self._random.choice([0, 0, 0, self._most_pages]), 0.35)

    def _small(self) -> Json:
        return self._sizes(
            self._any([1, 1, 1, 2, 2, 3]), self._any([64, 100, 128, 256, 400]), min(self._most_pages, 32), 0.2
        )

    def _sizes(self, cpus: int, memory: int, pages: int, devices: float) -> Json:
        huge = self._random.randint(0, pages) if pages and self._random.random() < 0.3 else 0
        return {
            "cpu": str(cpus),
            "memory": f"{memory}Mi",
            **({"hugepages-2Mi": f"{2 * huge}Mi"} if huge else {}),
            **self._devices(devices),
        }

    def _devices(self, likely: float) -> Json:
        return {
            resource: str(self._any([1, 1, 1, 2, 3])) for resource in self._resources if self._random.random() < likely
        }

    def _any(self, choices: Sequence[Any]) -> Any:
        return self._random.choice(choices)


def pod(name: str, kind: str, spec: Json, *, starts: bool = False) -> Json:
    """Returns a pod with these containers; `starts` runs it, otherwise it is only admitted."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {LABEL: kind}},
        "spec": {
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 0,
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **({} if starts else {"runtimeClassName": NEVER_STARTS}),
            **spec,
        },
    }


def small(name: str, node: str = "", sizes: Mapping[str, str] = MappingProxyType({}), *, starts: bool = False) -> Json:
    """Returns a pod that allocates a CPU and memory, on any node or on `node`; `sizes` adds or replaces amounts."""
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    amounts = {"cpu": "1", "memory": "64Mi", **sizes}
    return pod(name, "one", {"containers": [container("main", amounts)], **selector}, starts=starts)


def container(name: str, sizes: Json, command: Sequence[str] = ("sleep", "infinity")) -> Json:
    """Guaranteed, if it has CPUs and memory."""
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
        "resources": {"limits": sizes, "requests": sizes},
    }


_KINDS: Final[dict[str, tuple[int, Callable[[Series], Json]]]] = {
    "one": (36, Series.one),
    "shared": (8, Series.shared),
    "several": (20, Series.several),
    "after-init": (10, Series.after_init),
    "with-sidecar": (12, Series.with_sidecar),
    "burstable": (8, Series.burstable),
    "best-effort": (3, Series.best_effort),
}


def bound_by_hand(original: Json, node: str) -> Json:
    """Returns a copy that is bound without a scheduler."""
    metadata = {**original["metadata"], "name": f"{original['metadata']['name']}-on-{node}"}
    return {**original, "metadata": metadata, "spec": {**original["spec"], "nodeName": node}}
