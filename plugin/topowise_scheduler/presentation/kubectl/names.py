"""Names as kubectl takes them: `web-0`, `pod/web-0`, `deploy/web`, `node/a`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from topowise.errors import SourceError
from topowise.kube import paths
from topowise_scheduler.presentation.kubectl.source import Kubectl, decoded, documents
from topowise_scheduler.presentation.text import first_of

_MAX_NAMES: Final = 8
# Kind, path of its group version, plural, and what else people write for it.
_KINDS: Final = (
    ("Pod", "/api/v1", "pods", ("pod", "po")),
    ("Deployment", "/apis/apps/v1", "deployments", ("deployment", "deploy")),
    ("StatefulSet", "/apis/apps/v1", "statefulsets", ("statefulset", "sts")),
    ("ReplicaSet", "/apis/apps/v1", "replicasets", ("replicaset", "rs")),
    ("Job", "/apis/batch/v1", "jobs", ("job",)),
    ("CronJob", "/apis/batch/v1", "cronjobs", ("cronjob", "cj")),
)
_NODES: Final = ("node", "nodes", "no")

Json = dict[str, Any]


def node(text: str) -> str:
    """The name of a node. Raises SourceError for another kind."""
    kind, slash, name = text.rpartition("/")
    if slash and kind.lower() not in _NODES:
        raise SourceError(text, "expected NAME or node/NAME")
    return name


def is_pod(text: str) -> bool:
    """Whether the text names a pod, not a workload. Raises SourceError for other kinds."""
    return _kind(text)[0] == "Pod"


def bare(text: str) -> str:
    """The name without its kind."""
    return text.rpartition("/")[2]


def saved(text: str, namespace: str, files: Sequence[str]) -> Json:
    """The object of that name in the files. Raises SourceError if there is none."""
    kind, *_ = _kind(text)
    for document in documents(files):
        metadata = document.get("metadata") or {}
        identity = (document.get("kind"), metadata.get("namespace") or "default", metadata.get("name"))
        if identity == (kind, namespace, bare(text)):
            return dict(document)
    raise SourceError(", ".join(files), f"has no {kind} {namespace}/{bare(text)}, expected it there")


def of_cluster(text: str, namespace: str, kubectl: Kubectl) -> Json:
    """The object of that name in the cluster. Raises SourceError."""
    kind, group, plural, _ = _kind(text)
    path = paths.path(f"{group}/namespaces", namespace, plural, bare(text))
    (answer,) = kubectl.get(path)
    return {"kind": kind, **decoded(answer, path)}


def listing(kind: str, namespace: str) -> str:
    """The list path of a kind in a namespace. Raises SourceError for a kind that makes no pods."""
    _, group, plural, _ = _kind(f"{kind}/")
    return paths.path(f"{group}/namespaces", namespace, plural)


def existing_nodes(texts: Iterable[str], known: Sequence[str], where: str) -> list[str]:
    """The names of existing nodes. Raises SourceError for the first that does not exist."""
    nodes = list(dict.fromkeys(node(text) for text in texts))
    for name in nodes:
        if name not in known:
            raise SourceError(where, f"no such node {name!r:.260}, {instead(known)}")
    return nodes


def instead(known: Sequence[str]) -> str:
    """The expected names, for an error message."""
    if not known:
        return "expected the name of a reported node, but there is no NodeResourceTopology at all"
    return f"expected the name of a reported node: {first_of(known, _MAX_NAMES)}"


def _kind(text: str) -> tuple[str, str, str, Sequence[str]]:
    kind, slash, _ = text.rpartition("/")
    for entry in _KINDS:
        if kind.lower() in (entry[2], *entry[3]) or (not slash and entry[0] == "Pod"):
            return entry
    raise SourceError(text, f"expected NAME or KIND/NAME with one of {', '.join(entry[3][0] for entry in _KINDS)}")
