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


def node(given: str) -> str:
    """The name of a node. Raises SourceError for something of another kind."""
    kind, slash, name = given.rpartition("/")
    if slash and kind.lower() not in _NODES:
        raise SourceError(given, "expected NAME or node/NAME")
    return name


def is_pod(given: str) -> bool:
    """Whether it is the name of a pod, and not of something that makes pods. Raises SourceError for other kinds."""
    return _kind(given)[0] == "Pod"


def bare(given: str) -> str:
    """Without its kind."""
    return given.rpartition("/")[2]


def saved(given: str, namespace: str, files: Sequence[str]) -> Json:
    """The object of that name in the files. Raises SourceError if there is none."""
    kind, *_ = _kind(given)
    for document in documents(files):
        metadata = document.get("metadata") or {}
        found = (document.get("kind"), metadata.get("namespace") or "default", metadata.get("name"))
        if found == (kind, namespace, bare(given)):
            return dict(document)
    raise SourceError(", ".join(files), f"has no {kind} {namespace}/{bare(given)}, expected it there")


def of_cluster(given: str, namespace: str, kubectl: Kubectl) -> Json:
    """The object of that name in the cluster. Raises SourceError."""
    kind, group, plural, _ = _kind(given)
    path = paths.path(f"{group}/namespaces", namespace, plural, bare(given))
    (answer,) = kubectl.get(path)
    return {"kind": kind, **decoded(answer, path)}


def listing(kind: str, namespace: str) -> str:
    """The path of all objects of a kind in a namespace. Raises SourceError for a kind that makes no pods."""
    _, group, plural, _ = _kind(f"{kind}/")
    return paths.path(f"{group}/namespaces", namespace, plural)


def existing_nodes(given: Iterable[str], known: Sequence[str], where: str) -> list[str]:
    """The names of nodes, each of which there is. Raises SourceError for the first that there is not."""
    wanted = list(dict.fromkeys(node(one) for one in given))
    for name in wanted:
        if name not in known:
            raise SourceError(where, f"no such node {name!r:.260}, {instead(known)}")
    return wanted


def instead(known: Sequence[str]) -> str:
    """What could have been named."""
    if not known:
        return "expected the name of a reported node, but there is no NodeResourceTopology at all"
    return f"expected the name of a reported node: {first_of(known, _MAX_NAMES)}"


def _kind(given: str) -> tuple[str, str, str, Sequence[str]]:
    kind, slash, _ = given.rpartition("/")
    for one in _KINDS:
        if kind.lower() in (one[2], *one[3]) or (not slash and one[0] == "Pod"):
            return one
    raise SourceError(given, f"expected NAME or KIND/NAME with one of {', '.join(one[3][0] for one in _KINDS)}")
