"""The objects of the commands, from the cluster or from files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from topowise import nrt
from topowise.errors import SourceError
from topowise.kube import paths
from topowise_scheduler.kubectl.console import seconds_since
from topowise_scheduler.kubectl.source import ForbiddenError, Kubectl, MissingError, decoded, documents
from topowise_scheduler.ledger.budgets import Budget
from topowise_scheduler.verdicts.kube_scheduler import NodeObject, Pod

# Ended pods hold no resources, and are most of the pods in some clusters.
PODS_PATH: Final = "/api/v1/pods?fieldSelector=status.phase!%3DSucceeded,status.phase!%3DFailed"
ALL_PODS_PATH: Final = "/api/v1/pods"
WAITING_PATH: Final = "/api/v1/pods?fieldSelector=spec.nodeName%3D,status.phase%3DPending"
_BUDGETS_PATH: Final = "/apis/policy/v1/poddisruptionbudgets"
_CLASSES_PATH: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"

Json = dict[str, Any]


class _Class(msgspec.Struct, frozen=True):
    """The used fields of a PriorityClass."""

    metadata: nrt.Metadata
    value: int = 0


class Reported(msgspec.Struct, frozen=True):
    """An NRT, raw and decoded. `changed` is the last change of its content (RFC 3339), "" if unknown.

    `writers` are the field managers of its content.
    """

    raw: Json
    topology: nrt.NodeResourceTopology
    changed: str = ""
    writers: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the object as JSON."""
        return len(msgspec.json.encode(self.raw))


class Objects(msgspec.Struct, frozen=True):
    """`pods` and `nodes` are None where they were not read; `classes` are priorities by class."""

    reports: tuple[Reported, ...] = ()
    pods: tuple[Pod, ...] | None = None
    nodes: tuple[NodeObject, ...] | None = None
    classes: dict[str, int] = {}
    budgets: tuple[Budget, ...] = ()

    @property
    def kubelet_versions(self) -> dict[str, str]:
        """Kubelet versions by node, for known nodes."""
        return {node.metadata.name: node.status.nodeInfo.kubeletVersion for node in self.nodes or ()}

    def report(self, name: str) -> Reported | None:
        """The report of a node."""
        return next((report for report in self.reports if report.topology.metadata.name == name), None)


T = TypeVar("T")


class _List(msgspec.Struct, Generic[T], frozen=True):
    items: tuple[T, ...] = ()


def from_files(files: Sequence[str]) -> Objects:
    """NRTs, Pods, Nodes, PriorityClasses and PodDisruptionBudgets of files. Raises SourceError."""
    kinds: dict[str, list[Json]] = {}
    for document in documents(files):
        # `-o json` of earlier versions had no kinds.
        kinds.setdefault(document.get("kind") or nrt.KIND, []).append(document)
    where = ", ".join(files)
    return Objects(
        reports=reports(kinds.get(nrt.KIND, []), where),
        pods=tuple([_convert(document, Pod, where) for document in kinds["Pod"]]) if "Pod" in kinds else None,
        nodes=tuple([_convert(document, NodeObject, where) for document in kinds["Node"]]) if "Node" in kinds else None,
        classes=_values([_convert(document, _Class, where) for document in kinds.get("PriorityClass", [])]),
        budgets=tuple([_convert(document, Budget, where) for document in kinds.get("PodDisruptionBudget", [])]),
    )


def from_cluster(
    kubectl: Kubectl,
    *,
    pods_path: str = "",
    nodes: bool = False,
    budgets: bool = False,
    denied: dict[str, ForbiddenError] | None = None,
) -> Objects:
    """The NRTs of the cluster, and its pods, nodes and PodDisruptionBudgets on request.

    A cluster without the CRD has no NRTs. An object that the user may not read goes into `denied` by its path. Raises
    SourceError if nothing may be read, for any other error, and without `denied`.
    """
    also = {pods_path: bool(pods_path), paths.NODES: nodes, _BUDGETS_PATH: budgets}
    paths_ = [nrt.PATH, *(path for path, is_wanted in also.items() if is_wanted)]
    answers = dict(zip(paths_, kubectl.attempt(*paths_), strict=True))
    refused = {path: answer for path, answer in answers.items() if isinstance(answer, ForbiddenError)}
    if denied is not None and len(refused) < len(answers):
        denied |= refused
    for path, answer in answers.items():
        is_known = path in (denied or ()) or (path == nrt.PATH and isinstance(answer, MissingError))
        if isinstance(answer, SourceError) and not is_known:
            raise answer
    readable = {path for path in answers if path not in (denied or ())}
    return Objects(
        reports=reports(_topologies(kubectl, answers[nrt.PATH]), nrt.PATH) if nrt.PATH in readable else (),
        pods=_listed(answers[pods_path], Pod, pods_path) if pods_path in readable else None,
        nodes=_listed(answers[paths.NODES], NodeObject, paths.NODES) if paths.NODES in readable else None,
        budgets=_listed(answers[_BUDGETS_PATH], Budget, _BUDGETS_PATH) if budgets else (),
    )


def _topologies(kubectl: Kubectl, listed: bytes | SourceError) -> list[Json]:
    """The NRTs of an answer to a read of nrt.PATH; reads the older version if that path is not served."""
    if isinstance(listed, MissingError):
        listed = kubectl.served(nrt.OLD_PATH)
    if isinstance(listed, MissingError):
        return []
    if isinstance(listed, SourceError):
        raise listed
    items = decoded(listed, nrt.PATH)
    version = items.get("apiVersion") or nrt.API_VERSION
    return [{"apiVersion": version, "kind": nrt.KIND, **item} for item in items.get("items") or []]


def priority_classes(kubectl: Kubectl) -> dict[str, int]:
    """The values of the PriorityClasses of the cluster."""
    (answer,) = kubectl.get(_CLASSES_PATH)
    return _values(_listed(answer, _Class, _CLASSES_PATH))


def _values(classes: Iterable[_Class]) -> dict[str, int]:
    return {priority_class.metadata.name: priority_class.value for priority_class in classes}


def reports(objects: Sequence[Json], where: str) -> tuple[Reported, ...]:
    """NRTs by name. Raises SourceError."""
    reported = [_reported(document, where) for document in objects]
    return tuple(sorted(reported, key=lambda report: report.topology.metadata.name))


def pods_in(answer: bytes, path: str) -> tuple[Pod, ...]:
    """The pods of a list. Raises SourceError."""
    return _listed(answer, Pod, path)


def saved_at(there: Objects) -> float:
    """The latest time in saved objects, which stands for the time of saving."""
    return max((-seconds for text in _times(there) if (seconds := seconds_since(text, 0.0)) is not None), default=0.0)


def _times(there: Objects) -> Iterator[str]:
    yield from (report.changed for report in there.reports)
    for pod in there.pods or ():
        yield pod.metadata.creationTimestamp or ""
        yield (pod.status.startTime if pod.status is not None else None) or ""


def pod_of(document: Json, where: str) -> Pod:
    """The pod of a document. Raises SourceError."""
    return _convert(document, Pod, where)


def no_nodes(files: Sequence[str]) -> SourceError:
    """The error for a cluster without nodes."""
    where = ", ".join(files) or "the cluster"
    return SourceError(where, "has neither a NodeResourceTopology nor a Node, expected some")


def pods(kubectl: Kubectl, path: str) -> tuple[Pod, ...]:
    """The pods of a list. Raises SourceError."""
    (answer,) = kubectl.get(path)
    return _listed(answer, Pod, path)


def _listed(answer: bytes | SourceError, kind: type[T], path: str) -> tuple[T, ...]:
    if isinstance(answer, SourceError):
        raise answer
    try:
        return msgspec.json.decode(answer, type=_List[kind]).items  # type: ignore[valid-type]
    except msgspec.DecodeError as exc:
        raise SourceError(path, f"sent an unexpected answer: {exc}") from exc


def _convert(document: Json, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as exc:
        name = (document.get("metadata") or {}).get("name", "")
        raise SourceError(where, f"{document.get('kind')} {name!r:.80} cannot be read: {exc}") from exc


def _reported(document: Json, where: str) -> Reported:
    topology = nrt.current(_convert(document, nrt.NodeResourceTopology, where))
    metadata = document["metadata"]
    entries = [entry for entry in metadata.get("managedFields") or () if isinstance(entry, dict)]
    writes = [entry for entry in entries if _CONTENT.intersection(entry.get("fieldsV1") or ())]
    times = [str(entry["time"]) for entry in writes or entries if entry.get("time")]
    return Reported(
        document,
        topology,
        max(times, default=str(metadata.get("creationTimestamp") or "")),
        tuple(sorted({str(entry.get("manager") or "") for entry in writes})),
    )


# Labels and annotations have other writers.
_CONTENT: Final = frozenset(("f:zones", "f:attributes", "f:topologyPolicies"))
