"""The pods of manifests: single pods, or the number of pods that a controller would make of its template."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from topowise import pods
from topowise.errors import ParseError, SourceError
from topowise_scheduler.cluster.pods.records import annotated
from topowise_scheduler.kube_scheduler import Pod, unbound, unexamined
from topowise_scheduler.presentation.kubectl import objects
from topowise_scheduler.presentation.kubectl.objects import Json
from topowise_scheduler.presentation.kubectl.source import documents

_TEMPLATES: Final = ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet")
_MOST_REPLICAS: Final = 10_000

# pkg/apis/scheduling/types.go
_SYSTEM_CLASSES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class Workload(msgspec.Struct, frozen=True):
    """A pod of a manifest, and the number of its copies.

    `origin` is the object, "Deployment default/web"; `serial` distinguishes objects of the same name. `priority_class`
    is "" if the pod has a priority.
    """

    pod: Pod
    origin: str
    count: int
    priority_class: str = ""
    serial: int = 0

    @property
    def name(self) -> str:
        """Namespace and name."""
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"

    def numbered(self, number: int) -> Pod:
        """A copy with a uid of its own: it is not the pod of that name that may exist already."""
        metadata = self.pod.metadata
        name = metadata.name if self.origin.startswith("Pod ") else f"{metadata.name}-{number}"
        uid = f"wanted/{self.serial}/{number}"
        return msgspec.structs.replace(self.pod, metadata=msgspec.structs.replace(metadata, name=name, uid=uid))

    def with_priority(self, classes: Mapping[str, int]) -> Workload:
        """Sets the priority of the class; 0 for an unknown class."""
        if not self.priority_class:
            return self
        priority = {**classes, **_SYSTEM_CLASSES}.get(self.priority_class, 0)
        spec = msgspec.structs.replace(self.pod.spec, priority=priority)
        return msgspec.structs.replace(self, pod=msgspec.structs.replace(self.pod, spec=spec))


def check_given(options: argparse.Namespace) -> None:
    """Raises SourceError unless the options name either a pod or workload, or files."""
    if bool(options.pod) == bool(options.file):
        expected = "expected either a pod, a workload (deploy/NAME), or -f FILE"
        raise SourceError(options.command, expected)


def read(files: Sequence[str], namespace: str) -> tuple[list[Workload], list[str]]:
    """The workloads of the files in their order, and notes on other objects. Raises SourceError if there are none."""
    where = ", ".join(files)
    workloads: list[Workload] = []
    left_out: Counter[str] = Counter()
    for document in documents(files):
        workload = _workload(document, namespace, where)
        if workload is None:
            left_out[str(document.get("kind") or "without a kind")] += 1
        else:
            workloads.append(msgspec.structs.replace(workload, serial=len(workloads)))
    if not workloads:
        kinds = ", ".join(sorted(left_out)) or "nothing"
        raise SourceError(where, f"has {kinds}, expected Pods, {', '.join(_TEMPLATES)}s or Jobs with replicas")
    notes = []
    daemons = left_out.pop("DaemonSet", 0)
    if daemons:
        notes.append(f"note: {daemons} DaemonSet(s) left out: they have a pod on every node")
    if left_out:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(left_out.items()))
        notes.append(f"note: left out, as they make no pods: {kinds}")
    return workloads, notes


def prioritised(workloads: Sequence[Workload], classes: Mapping[str, int]) -> tuple[list[Workload], list[str]]:
    """The workloads with the priorities of their classes, and notes on unknown classes."""
    named = {workload.priority_class for workload in workloads} - {""}
    notes = [
        f"warning: priority class {name!r} is not known; its pods are taken to have priority 0"
        for name in sorted(named - classes.keys() - _SYSTEM_CLASSES.keys())
    ]
    return [workload.with_priority(classes) for workload in workloads], notes


def not_looked_at(workloads: Sequence[Workload]) -> list[str]:
    """Notes on terms of the pods that are not evaluated."""
    return [note_on(workload.origin, terms) for workload in workloads if (terms := unexamined(workload.pod.spec))]


def note_on(origin: str, terms: Sequence[str]) -> str:
    """The note for an object."""
    return f"note: {origin} asks for {', '.join(terms)}, which is not evaluated"


def of_pod(document: Json, where: str, namespace: str = "default") -> Workload:
    """The workload of a pod. Raises SourceError."""
    return _make(document, document, f"Pod {_name(document, where)}", 1, namespace, where)


def of_object(document: Json, where: str, namespace: str) -> Workload:
    """The workload of an object. Raises SourceError if it makes no pods."""
    workload = _workload(document, namespace, where)
    if workload is None:
        raise SourceError(where, f"is a {document.get('kind')}, which makes no pods")
    return workload


def _workload(document: Json, namespace: str, where: str) -> Workload | None:
    """The workload of an object, None if it makes no pods that need a node."""
    kind, spec = document.get("kind"), document.get("spec") or {}
    if kind == "Pod" or (kind is None and "containers" in spec):
        return of_pod(document, where, namespace)
    if kind == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    if kind in _TEMPLATES:
        count = _count(document, spec.get("replicas"), where)
    elif kind in ("Job", "CronJob"):
        count = _count(document, spec.get("parallelism"), where)
        if spec.get("completions") is not None:
            count = min(count, _count(document, spec["completions"], where))
    else:
        return None
    template = spec.get("template") or {}
    return _make(template, document, f"{kind} {_name(document, where)}", count, namespace, where)


def _make(template: Json, owner: Json, origin: str, count: int, namespace: str, where: str) -> Workload:
    spec = template.get("spec") or {}
    metadata = {**(template.get("metadata") or {})}
    metadata["name"] = _name(owner, where)
    metadata["namespace"] = (owner.get("metadata") or {}).get("namespace") or namespace
    if owner is not template:
        metadata.pop("uid", None)
    kind, name = origin.split(" ", 1)
    # An existing pod is placed again, whatever its present node is.
    pod = unbound(objects.pod_of({"kind": "Pod", "metadata": metadata, "spec": spec}, where))
    try:
        annotated(pod.metadata.annotations, pods.needs(pod))
    except ParseError as exc:
        raise SourceError(where, f"{origin} cannot be read: {exc}") from exc
    named = "" if pod.spec.priority is not None else str(spec.get("priorityClassName") or "")
    return Workload(pod, f"{kind} {metadata['namespace']}/{name}", count, named)


def _name(document: Json, where: str) -> str:
    metadata = document.get("metadata") or {}
    name = str(metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-"))
    if not name:
        raise SourceError(where, f"a {document.get('kind') or 'pod'} has no metadata.name, expected one")
    return name


def _count(document: Json, count: Any, where: str) -> int:
    """A number of replicas; None is 1."""
    if count is None:
        return 1
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST_REPLICAS:
        name = f"{document.get('kind')} {_name(document, where)}"
        raise SourceError(where, f"{name} has {count!r:.80} replicas, expected a number from 0 to {_MOST_REPLICAS}")
    return count
