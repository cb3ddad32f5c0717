"""Objects that the user names (`web-0`, `pod/web-0`, `deploy/web`, `pytorchjobs.kubeflow.org/train`, `node/a`), and the
selection and order of the nodes of a table (names, `-l`, `--sort-by`).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from topowise.errors import SourceError
from topowise.kube import paths
from topowise_scheduler.explain.text import first_of
from topowise_scheduler.kubectl import zones
from topowise_scheduler.kubectl.objects import Objects, Reported
from topowise_scheduler.kubectl.source import Kubectl, decoded, documents
from topowise_scheduler.kubectl.zones import Losses
from topowise_scheduler.report import read
from topowise_scheduler.verdicts.kube_scheduler import NodeObject

Labels = Mapping[str, str]

_REQUIREMENT: Final = re.compile(
    r"\s*(?:(?P<key>[^\s,!=()]+)\s*(?:(?P<operator>==?|!=)\s*(?P<value>[^\s,!=()]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?|!\s*(?P<absent>[^\s,!=()]+))\s*(?:,|$)"
)
_MAX_NAMES: Final = 8
_PODS: Final = ("pod", "pods", "po")
# Saved objects have their kind alone; a cluster resolves these short names itself.
_SHORT: Final = {
    "deploy": "deployment", "sts": "statefulset", "ds": "daemonset", "rs": "replicaset", "cj": "cronjob",
    "rc": "replicationcontroller",
}  # fmt: skip
_NODES: Final = ("node", "nodes", "no")


def selected(options: argparse.Namespace, there: Objects, losses: Losses) -> list[Reported]:
    """The selected reports in the requested order. Raises SourceError."""
    reports = list(there.reports)
    if options.names:
        known = [report.topology.metadata.name for report in reports]
        names_ = existing_nodes(options.names, known, ", ".join(options.file) or "the cluster")
        reports = [report for report in reports if report.topology.metadata.name in names_]
    among = set(labelled([report.topology.metadata.name for report in reports], options.selector, there.nodes))
    reports = [report for report in reports if report.topology.metadata.name in among]
    if options.sort_by == "fragmentation":
        # The most fragmented first; reports are in the order of names.
        return sorted(reports, key=lambda report: -(losses.of(read(report.topology)).loss or 0))
    return sorted(reports, key=KEYS[options.sort_by])


def labelled(node_names: Sequence[str], text: str, nodes: Sequence[NodeObject] | None) -> Sequence[str]:
    """The names of Nodes with the labels; all names without a selector. Raises SourceError."""
    if not text:
        return node_names
    if nodes is None:
        raise SourceError("-l", "the saved objects have no Nodes, whose labels it selects")
    matches = selector(text)
    labels = {node.metadata.name: node.metadata.labels or {} for node in nodes}
    return [name for name in node_names if matches(labels.get(name, {}))]


def selector(text: str) -> Callable[[Labels], bool]:
    """A label selector as kubectl takes it. Raises SourceError."""
    tests: list[Callable[[Labels], bool]] = []
    at = 0
    while at < len(text):
        requirement = _REQUIREMENT.match(text, at)
        if requirement is None:
            expected = "expected a selector such as a=b,c!=d,e in (f,g),h,!i"
            raise SourceError("-l", f"{text!r:.260} cannot be read at {text[at:]!r:.60}, {expected}")
        tests.append(_test(requirement))
        at = requirement.end()
    return lambda labels: all(test(labels) for test in tests)


def _test(requirement: re.Match[str]) -> Callable[[Labels], bool]:
    key, absent, operator, among = (
        requirement["key"],
        requirement["absent"],
        requirement["operator"],
        requirement["set"],
    )
    if absent:
        return lambda labels: absent not in labels
    if not operator and not among:
        return lambda labels: key in labels
    values = {requirement["value"]} if operator else {value.strip() for value in requirement["values"].split(",")}
    if operator == "!=" or among == "notin":
        return lambda labels: labels.get(key) not in values
    return lambda labels: labels.get(key) in values


def _free(resource: str) -> Callable[[Reported], tuple[int, str]]:
    """A sort key: most free first; devices by the number of all kinds."""

    def key(report: Reported) -> tuple[int, str]:
        amounts = [
            amount.available or 0
            for _, zone in zones.zones_of(report.topology)
            for name, amount in zone.items()
            if name == resource or (resource == "devices" and "/" in name)
        ]
        return -sum(amounts), report.topology.metadata.name

    return key


KEYS: Final[dict[str, Callable[[Reported], tuple[int, str] | tuple[str, ...]]]] = {
    "name": lambda report: (report.topology.metadata.name,),
    "cpu": _free("cpu"),
    "memory": _free("memory"),
    "devices": _free("devices"),
    # The oldest first.
    "changed": lambda report: (report.changed, report.topology.metadata.name),
}


Json = dict[str, Any]


def node_name(text: str) -> str:
    """The name of a node. Raises SourceError for another kind."""
    kind, slash, name = text.rpartition("/")
    if slash and kind.lower() not in _NODES:
        raise SourceError(text, "expected NAME or node/NAME")
    return name


def is_pod(text: str) -> bool:
    """Whether the text names a pod, not an object of another kind."""
    kind, slash, _ = text.rpartition("/")
    return not slash or kind.lower() in _PODS


def bare_name(text: str) -> str:
    """The name without its kind."""
    return text.rpartition("/")[2]


def saved_object(text: str, namespace: str, files: Sequence[str]) -> Json:
    """The object of that name in the files. Raises SourceError if there is none."""
    # As for kubectl, a kind may be written in the plural, and with its group: pytorchjobs.kubeflow.org.
    kind = "pod" if is_pod(text) else text.rpartition("/")[0].lower().partition(".")[0]
    for document in documents(files):
        metadata = document.get("metadata") or {}
        own_kind = str(document.get("kind") or "").lower()
        is_kind = _SHORT.get(kind, kind).removesuffix("s") == own_kind.removesuffix("s")
        if is_kind and (metadata.get("namespace") or "default", metadata.get("name")) == (namespace, bare_name(text)):
            return dict(document)
    raise SourceError(
        ", ".join(files), f"has no {_SHORT.get(kind, kind)} {namespace}/{bare_name(text)}, expected it there"
    )


def cluster_object(text: str, namespace: str, kubectl: Kubectl) -> Json:
    """The object of that name in the cluster. Raises SourceError."""
    if not is_pod(text):
        return dict(kubectl.object(text, namespace))
    path = paths.pod(namespace, bare_name(text))
    (answer,) = kubectl.get(path)
    return {"kind": "Pod", **decoded(answer, path)}


def existing_nodes(texts: Iterable[str], known: Sequence[str], where: str) -> list[str]:
    """The names of existing nodes. Raises SourceError for the first that does not exist."""
    nodes = list(dict.fromkeys(node_name(text) for text in texts))
    for name in nodes:
        if name not in known:
            raise SourceError(where, f"no such node {name!r:.260}, {instead(known)}")
    return nodes


def instead(known: Sequence[str]) -> str:
    """The expected names, for an error message."""
    if not known:
        return "expected the name of a reported node, but there is no NodeResourceTopology at all"
    return f"expected the name of a reported node: {first_of(known, _MAX_NAMES)}"
