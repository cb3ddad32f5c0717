"""The exporters' pods by node: which nodes are to have reports, and whether an exporter is Ready there.

The service watches all pods anyway, so this needs neither another watch nor another right. Labels alone identify no
exporter, because every tenant can set them: the pods count in a single namespace.

Invariant: a node is covered from the first pod of an exporter there until the Node is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Final

import msgspec

from topowise.pods import Metadata
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts.kube_scheduler import Node


class ExporterSettings(msgspec.Struct, frozen=True):
    """How exporters are recognised, and for how many seconds the service waits for them.

    `node_selector`: labels of the nodes that are to have an exporter. `first_report_s`: time for the first report of a
    node since its creation, 0 for none. `grace_s`: time for which an exporter may be not Ready or missing.
    `unreported_s`: time for which a report may lack a running pod. The image of an exporter is pulled, and an exporter
    is updated, within two minutes.
    """

    node_selector: Mapping[str, str] = {}
    first_report_s: float = 120.0
    grace_s: float = 120.0
    unreported_s: float = 120.0


class ExporterPods:
    """Pods of exporters. Not thread-safe."""

    def __init__(self) -> None:
        # Node and readiness by UID, and the readiness by UID for each node.
        self._nodes: dict[str, str] = {}
        self._ready: dict[str, dict[str, bool]] = {}
        self._covered: set[str] = set()

    @property
    def is_known(self) -> bool:
        """Returns whether the cluster has, or had lately, a pod of an exporter."""
        return bool(self._covered)

    def put(self, record: PodRecord) -> bool:
        """Takes a version of a pod; a pod that is no exporter, has no node or has ended does not count. Returns whether
        the node was not covered before."""
        if record.status.exporter_ready is None or record.status.stage != "assigned":
            self.drop(record.uid)
            return False
        is_new = record.node not in self._covered
        self._nodes[record.uid] = record.node
        self._ready.setdefault(record.node, {})[record.uid] = record.status.exporter_ready
        self._covered.add(record.node)
        return is_new

    def drop(self, uid: str) -> None:
        """Drops a deleted pod."""
        node = self._nodes.pop(uid, None)
        if node is not None:
            del self._ready[node][uid]
            if not self._ready[node]:
                del self._ready[node]

    def forget_gone(self, nodes: Set[str]) -> None:
        """Forgets the nodes that are deleted and have no pod of an exporter any more."""
        self._covered &= nodes | self._ready.keys()

    def is_covered(self, name: str) -> bool:
        """Returns whether the node has, or had, a pod of an exporter."""
        return name in self._covered

    def is_ready(self, name: str) -> bool:
        """Returns whether an exporter on the node is Ready."""
        return any(self._ready.get(name, {}).values())


LABELS: Final = {"app.kubernetes.io/part-of": "topowise", "app.kubernetes.io/component": "exporter"}
"""Labels of the exporters' pods."""


def recognises(namespace: str | None, labels: Mapping[str, str] = LABELS) -> Callable[[Metadata], bool]:
    """Returns a function that returns whether a pod is an exporter's, by its labels and namespace (None: any)."""
    return lambda pod: namespace in (None, pod.namespace) and labels.items() <= (pod.labels or {}).items()


def selects(selector: Mapping[str, str], node: Node) -> bool:
    """Returns whether the node has all labels of a nodeSelector."""
    return all(node.label(key) == value for key, value in selector.items())
