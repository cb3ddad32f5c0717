"""Names as kubectl takes them: `web-0`, `pod/web-0`, `deploy/web`, `pytorchjobs.kubeflow.org/train`, `node/a`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from topowise.errors import SourceError
from topowise.kube import paths
from topowise_scheduler.explain.text import first_of
from topowise_scheduler.kubectl.source import Kubectl, decoded, documents

_MAX_NAMES: Final = 8
_PODS: Final = ("pod", "pods", "po")
# Saved objects have their kind alone; a cluster resolves these short names itself.
_SHORT: Final = {
    "deploy": "deployment", "sts": "statefulset", "ds": "daemonset", "rs": "replicaset", "cj": "cronjob",
    "rc": "replicationcontroller",
}  # fmt: skip
_NODES: Final = ("node", "nodes", "no")

Json = dict[str, Any]


def node(text: str) -> str:
    """The name of a node. Raises SourceError for another kind."""
    kind, slash, name = text.rpartition("/")
    if slash and kind.lower() not in _NODES:
        raise SourceError(text, "expected NAME or node/NAME")
    return name


def is_pod(text: str) -> bool:
    """Whether the text names a pod, not an object of another kind."""
    kind, slash, _ = text.rpartition("/")
    return not slash or kind.lower() in _PODS


def bare(text: str) -> str:
    """The name without its kind."""
    return text.rpartition("/")[2]


def saved(text: str, namespace: str, files: Sequence[str]) -> Json:
    """The object of that name in the files. Raises SourceError if there is none."""
    # As for kubectl, a kind may be written in the plural, and with its group: pytorchjobs.kubeflow.org.
    kind = "pod" if is_pod(text) else text.rpartition("/")[0].lower().partition(".")[0]
    for document in documents(files):
        metadata = document.get("metadata") or {}
        own_kind = str(document.get("kind") or "").lower()
        is_kind = _SHORT.get(kind, kind).removesuffix("s") == own_kind.removesuffix("s")
        if is_kind and (metadata.get("namespace") or "default", metadata.get("name")) == (namespace, bare(text)):
            return dict(document)
    raise SourceError(", ".join(files), f"has no {_SHORT.get(kind, kind)} {namespace}/{bare(text)}, expected it there")


def of_cluster(text: str, namespace: str, kubectl: Kubectl) -> Json:
    """The object of that name in the cluster. Raises SourceError."""
    if not is_pod(text):
        return dict(kubectl.object(text, namespace))
    path = paths.pod(namespace, bare(text))
    (answer,) = kubectl.get(path)
    return {"kind": "Pod", **decoded(answer, path)}


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
