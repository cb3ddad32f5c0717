"""The pods of manifests: single pods, or the number of pods that a controller would make of its template.

Templates are found by their schema in objects of any kind: a mapping with `spec.containers`, at any depth. So a
Deployment, a PyTorchJob, a RayCluster or a kind of tomorrow needs no entry in a list. The number of pods is the product
of the fields beside the template, or above it, that count copies.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from topowise import pods
from topowise.errors import ParseError, SourceError
from topowise.placement import GATE
from topowise_scheduler.kubectl import objects, selection, validation
from topowise_scheduler.kubectl.objects import Json
from topowise_scheduler.kubectl.source import Kubectl, documents
from topowise_scheduler.ledger.pods.demands import demands_of
from topowise_scheduler.options.registry import READERS
from topowise_scheduler.verdicts.kube_scheduler import Pod, unbound, unexamined

# pkg/apis/scheduling/types.go
_SYSTEM_CLASSES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
# pkg/controller/daemon/util/daemonset_util.go (AddOrUpdateDaemonPodTolerations)
_DAEMON_TOLERATIONS: Final = (
    *({"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute"}
      for key in ("not-ready", "unreachable")),
    *({"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoSchedule"}
      for key in ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")),
)  # fmt: skip
MOST: Final = 10_000
"""The most pods of an object."""
_COPIES: Final = ("replicas", "count")
# An object of these groups cannot lack containers: the API server rejects it. Templates of other kinds are not pods.
_GROUPS_OF_PODS: Final = ("v1", "apps", "batch")
# What an object was, and what its controller has seen.
_NOT_DESIRED: Final = ("status", "metadata")


class Workload(msgspec.Struct, frozen=True):
    """A pod of a manifest, and the number of its copies.

    `origin` is the object, "Deployment default/web"; `serial` distinguishes objects of the same name. `priority_class`
    is "" if the pod has a priority. `is_on_every_node`: a DaemonSet makes a pod for each node that takes it.
    """

    pod: Pod
    origin: str
    count: int
    priority_class: str = ""
    serial: int = 0
    is_on_every_node: bool = False

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


def workloads_of(options: argparse.Namespace) -> tuple[list[Workload], list[str]]:
    """The workloads of the manifests, or of the named object, with notes. Raises SourceError."""
    check(options)
    if not options.pod:
        kubectl = Kubectl(options.kubectl) if options.server_side else None
        return read(options.file, options.namespace or "default", kubectl)
    document, namespace = named(options)
    return of_object(document, options.pod, namespace), []


def check(options: argparse.Namespace) -> None:
    """Raises SourceError for options that contradict each other."""
    if options.pod and options.file:
        raise SourceError(options.command, "expected either a pod, KIND/NAME, or -f FILE, not both")
    if options.all_namespaces and (options.pod or options.file):
        raise SourceError("-A", "is for all waiting pods, expected no pod and no -f with it")
    if options.server_side and not options.file:
        raise SourceError("--server-side", "is for manifests, expected -f FILE with it")


def named(options: argparse.Namespace) -> tuple[Json, str]:
    """The named object, of the cluster or of saved objects, and its namespace. Raises SourceError."""
    namespace = namespace_of(options)
    if options.nodes_file:
        return selection.saved_object(options.pod, namespace, options.nodes_file), namespace
    return selection.cluster_object(options.pod, namespace, Kubectl(options.kubectl)), namespace


def namespace_of(options: argparse.Namespace) -> str:
    """The namespace of -n, or of the context."""
    if options.namespace or options.nodes_file:
        return options.namespace or "default"
    return Kubectl(options.kubectl).namespace()


def waiting(options: argparse.Namespace, existing: Iterable[Pod]) -> tuple[list[Workload], list[str]]:
    """The pods that wait for a node, the oldest first, in the namespace or with -A in all; a note if there are none."""
    namespace = "" if options.all_namespaces else namespace_of(options)
    pods_ = [
        pod
        for pod in existing
        if not (pod.spec.nodeName or pod.is_terminal or pod.metadata.deletionTimestamp or _is_gated_by_others(pod))
        and namespace in ("", pod.metadata.namespace or "default")
    ]
    pods_.sort(key=lambda pod: (pod.metadata.creationTimestamp or "", pod.metadata.namespace, pod.metadata.name))
    workloads = [
        Workload(unbound(pod), f"Pod {pod.metadata.namespace}/{pod.metadata.name}", 1, serial=serial)
        for serial, pod in enumerate(pods_)
    ]
    where = f"namespace {namespace}; -A is for all namespaces" if namespace else "any namespace"
    return workloads, [] if workloads else [f"note: no pod waits for a node in {where}"]


def _is_gated_by_others(pod: Pod) -> bool:
    """Returns whether the pod has gates, and none of them is this project's."""
    gates = pod.spec.schedulingGates or ()
    return bool(gates) and all(gate.name != GATE for gate in gates)


def read(files: Sequence[str], namespace: str, kubectl: Kubectl | None = None) -> tuple[list[Workload], list[str]]:
    """The workloads of the files in their order, and notes on other objects. Raises SourceError if there are none.

    With a kubectl, the API server sets defaults and validates each object before it is read.
    """
    where = ", ".join(files)
    workloads: list[Workload] = []
    left_out: Counter[str] = Counter()
    for document in documents(files):
        if not templates(document, where):
            left_out[str(document.get("kind") or "without a kind")] += 1
            continue
        stored = (
            document
            if kubectl is None
            else kubectl.dry_run(document, (document.get("metadata") or {}).get("namespace") or namespace)
        )
        for workload in of_object(stored, where, namespace):
            workloads.append(msgspec.structs.replace(workload, serial=len(workloads)))
    if not workloads:
        kinds = ", ".join(sorted(left_out)) or "nothing"
        raise SourceError(where, f"has {kinds}, expected Pods, or objects with a pod template")
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(left_out.items()))
    return workloads, [f"note: left out, as they make no pods: {kinds}"] if left_out else []


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


def of_object(document: Json, where: str, namespace: str) -> list[Workload]:
    """The workloads of an object, one for each of its pod templates. Raises SourceError if there are none."""
    pod_templates = templates(document, where)
    if not pod_templates:
        raise SourceError(where, f"is a {document.get('kind')}, which has no pod template")
    is_alone = len(pod_templates) == 1
    return [
        _make(template, document, "" if is_alone else template.role, namespace, where) for template in pod_templates
    ]


def _make(template: Template, owner: Json, role: str, namespace: str, where: str) -> Workload:
    name = "-".join(filter(None, (_name(owner, where), role)))
    kind = str(owner.get("kind") or "Pod")
    spec = template.document.get("spec") or {}
    if kind == "DaemonSet":
        spec = {**spec, "tolerations": [*(spec.get("tolerations") or ()), *_DAEMON_TOLERATIONS]}
    metadata = {**(template.document.get("metadata") or {}), "name": name}
    metadata["namespace"] = (owner.get("metadata") or {}).get("namespace") or namespace
    if owner is not template.document:
        metadata.pop("uid", None)
    origin = f"{kind} {metadata['namespace']}/{name}"
    # An existing pod is placed again, whatever its present node is.
    pod = unbound(objects.pod_of({"kind": "Pod", "metadata": metadata, "spec": spec}, where))
    try:
        problems = list(validation.problems(pod, f"{template.path}.spec".removeprefix(".")))
        demands_of(pod.metadata, pods.needs(pod), READERS)
    except ParseError as exc:
        raise SourceError(where, f"{origin} cannot be read: {exc}") from exc
    if problems:
        causes = problems[0] if len(problems) == 1 else f"[{', '.join(dict.fromkeys(problems))}]"
        raise SourceError(where, f'{kind} "{_name(owner, where)}" is invalid: {causes}')
    named = "" if pod.spec.priority is not None else str(spec.get("priorityClassName") or "")
    return Workload(pod, origin, template.pods, named, is_on_every_node=kind == "DaemonSet")


def _name(document: Json, where: str) -> str:
    metadata = document.get("metadata") or {}
    name = str(metadata.get("name") or str(metadata.get("generateName") or "").rstrip("-"))
    if not name:
        raise SourceError(where, f"a {document.get('kind') or 'pod'} has no metadata.name, expected one")
    return name


class Template(NamedTuple):
    """A pod template and the number of its pods.

    `path` is its place in the object ("spec.template"), `role` distinguishes the templates of an object.
    """

    document: Json
    path: str
    role: str
    pods: int


def templates(document: Json, where: str) -> list[Template]:
    """The pod templates of an object, none if it makes no pods. Raises SourceError for an invalid number of pods."""
    spec = document.get("spec")
    if document.get("kind") == "Pod" or (document.get("kind") is None and _has_containers(document)):
        return [Template(document, "", "", 1)]
    desired = {name: value for name, value in document.items() if name not in _NOT_DESIRED}
    pod_templates = list(_below(desired, "", "", 1, f"{where}: {document.get('kind')}"))
    group = str(document.get("apiVersion") or "v1").partition("/")[0]
    if (
        not pod_templates
        and group in _GROUPS_OF_PODS
        and isinstance(spec, dict)
        and isinstance(spec.get("template"), dict)
    ):
        return [Template(spec["template"], "spec.template", "", 1)]
    return pod_templates


def _has_containers(value: Mapping[str, Any]) -> bool:
    spec = value.get("spec")
    return isinstance(spec, dict) and isinstance(spec.get("containers"), list)


def _below(value: Any, path: str, role: str, count: int, where: str) -> Iterator[Template]:
    """Depth first, in the order of the document, whose depth `documents` bounds."""
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from _below(item, f"{path}[{at}]", role, count, where)
    if not isinstance(value, dict):
        return
    if _has_containers(value):
        yield Template(value, path, role.removesuffix("template").lower(), count)
        return
    count *= _copies(value, path, where)
    if count > MOST:
        raise SourceError(where, f"{path or 'object'} asks for {count} pods, expected at most {MOST}")
    name = value.get("name") or value.get("groupName")
    own = name if isinstance(name, str) else role
    for key, inner in value.items():
        # The key "template" says nothing about the role of its pods.
        inner_role = own if key in ("template", "spec") else key.removesuffix("Template")
        copies = count * _of_group(value, key) if key.endswith("Template") else count
        yield from _below(inner, f"{path}.{key}" if path else key, inner_role, copies, where)


def _copies(value: Mapping[str, Any], path: str, where: str) -> int:
    """The copies that a mapping asks for of the templates in it; 1 if it has no such field."""
    numbers = [_number(value[name], f"{path}.{name}", where) for name in _COPIES if value.get(name) is not None]
    if value.get("parallelism") is not None or value.get("completions") is not None:
        both = [value[name] for name in ("parallelism", "completions") if value.get(name) is not None]
        numbers.append(
            min([_number(number, path, where) for number in both] + [1] * (value.get("parallelism") is None))
        )
    product = 1
    for number in numbers:
        product *= number
    return product


def _of_group(value: Mapping[str, Any], key: str) -> int:
    """The pods of a template of a LeaderWorkerSet, whose `size` includes the leader."""
    size = value.get("size")
    if not isinstance(size, int) or "workerTemplate" not in value:
        return 1
    if key == "workerTemplate":
        return max(0, size - ("leaderTemplate" in value))
    return 1


def _number(number: Any, path: str, where: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MOST:
        raise SourceError(where, f"{path} is {number!r:.80}, expected a number of pods from 0 to {MOST}")
    return number
