"""The pods that manifests ask for: as they are, or as many as a controller would make of its template."""

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


class Wanted(msgspec.Struct, frozen=True):
    """A pod that somebody asks for, `count` of them in a row.

    `origin` is what asks: "Deployment default/web"; `serial` tells two of one name apart. `priority_class` is "" where
    the priority itself is written.
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
        """One of them, with a uid of its own: it is not the pod of that name that may be there already."""
        metadata = self.pod.metadata
        name = metadata.name if self.origin.startswith("Pod ") else f"{metadata.name}-{number}"
        uid = f"wanted/{self.serial}/{number}"
        return msgspec.structs.replace(self.pod, metadata=msgspec.structs.replace(metadata, name=name, uid=uid))

    def with_priority(self, classes: Mapping[str, int]) -> Wanted:
        """With the priority of its class; 0 for one that is not known."""
        if not self.priority_class:
            return self
        priority = {**classes, **_SYSTEM_CLASSES}.get(self.priority_class, 0)
        spec = msgspec.structs.replace(self.pod.spec, priority=priority)
        return msgspec.structs.replace(self, pod=msgspec.structs.replace(self.pod, spec=spec))


def check_given(options: argparse.Namespace) -> None:
    """Raises SourceError unless a pod, or what makes pods, is either named or in files."""
    if bool(options.pod) == bool(options.file):
        expected = "expected a pod, what makes pods (deploy/NAME), or -f FILE, and only one of them"
        raise SourceError(options.command, expected)


def read(files: Sequence[str], namespace: str) -> tuple[list[Wanted], list[str]]:
    """What the files ask for in their order, and notes on what makes no pods. Raises SourceError if nothing does."""
    where = ", ".join(files)
    found: list[Wanted] = []
    left_out: Counter[str] = Counter()
    for document in documents(files):
        made = _wanted(document, namespace, where)
        if made is None:
            left_out[str(document.get("kind") or "without a kind")] += 1
        else:
            found.append(msgspec.structs.replace(made, serial=len(found)))
    if not found:
        kinds = ", ".join(sorted(left_out)) or "nothing"
        raise SourceError(where, f"has {kinds}, expected Pods, {', '.join(_TEMPLATES)}s or Jobs with replicas")
    notes = []
    daemons = left_out.pop("DaemonSet", 0)
    if daemons:
        notes.append(f"note: {daemons} DaemonSet(s) left out: they have a pod on every node")
    if left_out:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(left_out.items()))
        notes.append(f"note: left out, as they make no pods: {kinds}")
    return found, notes


def prioritised(found: Sequence[Wanted], classes: Mapping[str, int]) -> tuple[list[Wanted], list[str]]:
    """The wanted pods with the priorities of their classes, and notes on classes that are not known."""
    named = {one.priority_class for one in found} - {""}
    notes = [
        f"warning: priority class {name!r} is not known; its pods are taken to have priority 0"
        for name in sorted(named - classes.keys() - _SYSTEM_CLASSES.keys())
    ]
    return [one.with_priority(classes) for one in found], notes


def not_looked_at(found: Sequence[Wanted]) -> list[str]:
    """Notes on what the pods ask of their nodes that is not looked at."""
    return [note_on(one.origin, asked) for one in found if (asked := unexamined(one.pod.spec))]


def note_on(what: str, asked: Sequence[str]) -> str:
    """The note for one."""
    return f"note: {what} asks for {', '.join(asked)}, which is not looked at here"


def of_pod(document: Json, where: str, namespace: str = "default") -> Wanted:
    """One pod. Raises SourceError."""
    return _make(document, document, f"Pod {_name(document, where)}", 1, namespace, where)


def of_object(document: Json, where: str, namespace: str) -> Wanted:
    """What an object that makes pods asks for. Raises SourceError."""
    made = _wanted(document, namespace, where)
    if made is None:
        raise SourceError(where, f"is a {document.get('kind')}, which makes no pods")
    return made


def _wanted(document: Json, namespace: str, where: str) -> Wanted | None:
    """What one object asks for; None if it is nothing that makes pods on some node."""
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


def _make(template: Json, owner: Json, origin: str, count: int, namespace: str, where: str) -> Wanted:
    spec = template.get("spec") or {}
    metadata = {**(template.get("metadata") or {})}
    metadata["name"] = _name(owner, where)
    metadata["namespace"] = (owner.get("metadata") or {}).get("namespace") or namespace
    if owner is not template:
        metadata.pop("uid", None)
    kind, name = origin.split(" ", 1)
    # One that is there is placed anew, wherever it is now.
    pod = unbound(objects.pod_of({"kind": "Pod", "metadata": metadata, "spec": spec}, where))
    try:
        annotated(pod.metadata.annotations, pods.needs(pod))
    except ParseError as exc:
        raise SourceError(where, f"{origin} cannot be read: {exc}") from exc
    named = "" if pod.spec.priority is not None else str(spec.get("priorityClassName") or "")
    return Wanted(pod, f"{kind} {metadata['namespace']}/{name}", count, named)


def _name(document: Json, where: str) -> str:
    metadata = document.get("metadata") or {}
    name = str(metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-"))
    if not name:
        raise SourceError(where, f"a {document.get('kind') or 'pod'} has no metadata.name, expected one")
    return name


def _count(document: Json, given: Any, where: str) -> int:
    """A number of replicas; None is 1."""
    if given is None:
        return 1
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= _MOST_REPLICAS:
        name = f"{document.get('kind')} {_name(document, where)}"
        raise SourceError(where, f"{name} has {given!r:.80} replicas, expected a number from 0 to {_MOST_REPLICAS}")
    return given
