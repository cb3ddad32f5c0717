"""The Node objects there are, as little of each as kube-scheduler's own filters need (kube_scheduler.py).

Invariant: what is kept is what the last list and the events after it said. Nodes of one pool share their amounts,
labels and taints, so that a node costs some 200 bytes; only a label that is another on every node takes more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from topowise import pods
from topowise.bounded import Bounded, size_of_dict
from topowise.errors import ParseError
from topowise_scheduler.cluster.changes import Changes
from topowise_scheduler.kube_scheduler import HOSTNAME, Node, NodeObject, Taint

if TYPE_CHECKING:
    # At run time it would bring the HTTP client along, for kubectl too.
    from topowise.kube.reflector import EventType

STARTUP_TAINT: Final = "topowise.io/unreported"
"""Key of the taint that keeps pods from a node that has not been reported yet."""
# Of each: a Node changes at every heartbeat, and whoever may write one may make it another each time.
_MAX_BYTES: Final = 16 << 20
# Of a version that is kept: longer than any is.
_LONGEST: Final = 64


_decode = msgspec.json.Decoder(NodeObject).decode
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Nodes:
    """By name. Not thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, Node] = {}
        self.tainted: set[str] = set()
        """Names of nodes with the start-up taint."""
        self._amounts: Bounded[bytes, pods.Amounts] = Bounded(_MAX_BYTES, size_of_dict)
        self._labels: Bounded[bytes, dict[str, str]] = Bounded(_MAX_BYTES, size_of_dict)
        self._taints: Bounded[tuple[Taint, ...], tuple[Taint, ...]] = Bounded(_MAX_BYTES, _length)
        self._changes = Changes()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def get(self, name: str) -> Node | None:
        """A node, None if there is no such object."""
        return self._held.get(name)

    @property
    def changes(self) -> int:
        """Counts what has become of nodes; a heartbeat that says nothing new is none."""
        return self._changes.count

    def changed_since(self, changes: int) -> Iterator[str]:
        """The nodes that came, changed or went after `changes` counted this."""
        return self._changes.since(changes)

    def kubelet(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The version that a node tells of its kubelet, "" if it does not or there is no such object, and the hugepages
        that it lists."""
        node = self._held.get(name)
        return ("", ()) if node is None else (node.kubelet_version, node.page_sizes)

    def decode(self, raw: bytes | msgspec.Raw) -> Node:
        """A node from its JSON. Raises msgspec.DecodeError for what is no v1.Node."""
        return self.node(_decode(raw))

    def node(self, given: NodeObject) -> Node:
        """What is kept of it. An amount that cannot be read is none."""
        metadata, spec, status = given.metadata, given.spec, given.status
        labels = dict(metadata.labels or {})
        hostname = labels.pop(HOSTNAME, "")
        taints = spec.taints or ()
        allocatable = status.allocatable or {}
        return Node(
            name=metadata.name,
            allocatable=self._amounts.once(_encode(allocatable), lambda: _amounts(allocatable)),
            labels=self._labels.once(_encode(labels), lambda: labels),
            hostname=metadata.name if hostname == metadata.name else hostname,
            taints=self._taints.once(taints, lambda: taints),
            is_cordoned=bool(spec.unschedulable),
            is_ready=given.is_ready,
            # A cluster has a handful of them.
            kubelet_version=sys.intern(status.nodeInfo.kubeletVersion[:_LONGEST]),
            boot_id=status.nodeInfo.bootID[:_LONGEST],
        )

    def apply(self, event: EventType, item: Node) -> None:
        """One node came, changed or went."""
        if self._held.get(item.name) != (None if event == "DELETED" else item):
            self._changes.note(item.name)
        if event == "DELETED":
            self._held.pop(item.name, None)
            self.tainted.discard(item.name)
            return
        self._held[item.name] = item
        if _has_startup_taint(item):
            self.tainted.add(item.name)
        else:
            self.tainted.discard(item.name)


def _length(taints: tuple[Taint, ...], _: object) -> int:
    return sum([len(one.key) + len(one.value) for one in taints])


def _has_startup_taint(node: Node) -> bool:
    return any(taint.key == STARTUP_TAINT for taint in node.taints)


def _amounts(quantities: pods.Quantities) -> pods.Amounts:
    found = {}
    for resource, given in quantities.items():
        try:
            found[resource] = pods.amount_of(resource, given)
        except ParseError:
            continue
    return found
