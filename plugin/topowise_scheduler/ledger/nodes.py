"""The Node objects of the cluster, reduced to what kube-scheduler's own filters need (kube_scheduler.py).

Invariant: the nodes are those of the last list and the events after it. Nodes of a pool share their amounts, labels and
taints, so a node takes some 200 bytes. Only labels with a different value on every node take more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from topowise import pods
from topowise.bounded import Bounded, size_of_dict
from topowise.errors import ParseError
from topowise_scheduler.ledger.changes import Changes
from topowise_scheduler.verdicts.kube_scheduler import HOSTNAME, Node, NodeAnnotations, NodeObject, Taint

if TYPE_CHECKING:
    # At run time the import would load the HTTP client, also for kubectl.
    from topowise.kube.reflector import EventType

STARTUP_TAINT: Final = "topowise.io/unreported"
"""Key of the taint that repels pods from a node without a report."""
# Bound of each shared map: a writer of Nodes may send a new value with every update.
_MAX_BYTES: Final = 16 << 20
# Longer than any version or boot id of a kubelet.
_MAX_VERSION_LENGTH: Final = 64


_decode = msgspec.json.Decoder(NodeObject).decode
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Nodes:
    """Nodes by name. Not thread-safe."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self.tainted: set[str] = set()
        """Names of nodes with the start-up taint."""
        self.guarded: set[str] = set()
        """Names of nodes whose scale-down this service has disabled."""
        self._amounts: Bounded[bytes, pods.Amounts] = Bounded(_MAX_BYTES, size_of_dict)
        self._labels: Bounded[bytes, dict[str, str]] = Bounded(_MAX_BYTES, size_of_dict)
        self._taints: Bounded[tuple[Taint, ...], tuple[Taint, ...]] = Bounded(_MAX_BYTES, _size_of_taints)
        self._changes = Changes()

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def get(self, name: str) -> Node | None:
        """Returns a node, None if there is no such object."""
        return self._nodes.get(name)

    @property
    def changes(self) -> int:
        """Number of changes of nodes so far; a heartbeat without other content is no change."""
        return self._changes.count

    def changed_since(self, changes: int) -> Iterator[str]:
        """Yields the nodes that were added, changed or deleted since `Nodes.changes` was `changes`."""
        return self._changes.since(changes)

    def allocatable(self, resource: str, name: str) -> int | None:
        """Returns how much of a resource a node has, None if the Node does not list the resource."""
        node = self._nodes.get(name)
        return None if node is None else node.allocatable.get(resource)

    def kubelet(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Returns the kubelet version and the hugepage sizes that a node reports, "" and none if there is no such
        object."""
        node = self._nodes.get(name)
        return ("", ()) if node is None else (node.kubelet_version, node.page_sizes)

    def decode(self, raw: bytes | msgspec.Raw) -> Node:
        """Returns a node from its JSON. Raises msgspec.DecodeError if it is no v1.Node."""
        return self.node(_decode(raw))

    def node(self, node: NodeObject) -> Node:
        """Returns the reduced node. An amount that cannot be read is left out."""
        metadata, spec, status = node.metadata, node.spec, node.status
        labels = dict(metadata.labels or {})
        # The label differs on every node; without it the nodes of a pool share their labels.
        hostname = labels.pop(HOSTNAME, "")
        taints = spec.taints or ()
        allocatable = status.allocatable or {}
        return Node(
            name=metadata.name,
            allocatable=self._amounts.once(_encode(allocatable), lambda: amounts_of(allocatable)),
            labels=self._labels.once(_encode(labels), lambda: labels),
            hostname=metadata.name if hostname == metadata.name else hostname,
            taints=self._taints.once(taints, lambda: taints),
            is_cordoned=bool(spec.unschedulable),
            is_ready=node.is_ready,
            # Interned: a cluster has a handful of versions.
            kubelet_version=sys.intern(status.nodeInfo.kubeletVersion[:_MAX_VERSION_LENGTH]),
            boot_id=status.nodeInfo.bootID[:_MAX_VERSION_LENGTH],
            guard=_guard(metadata.annotations),
            created=(metadata.creationTimestamp or "")[:_MAX_VERSION_LENGTH],
        )

    def apply(self, event: EventType, item: Node) -> None:
        """Applies the event of a node."""
        if self._nodes.get(item.name) != (None if event == "DELETED" else item):
            self._changes.note(item.name)
        if event == "DELETED":
            self._nodes.pop(item.name, None)
            self.tainted.discard(item.name)
            self.guarded.discard(item.name)
            return
        self._nodes[item.name] = item
        if _has_startup_taint(item):
            self.tainted.add(item.name)
        else:
            self.tainted.discard(item.name)
        if item.guard == "ours":
            self.guarded.add(item.name)
        else:
            self.guarded.discard(item.name)


def _size_of_taints(taints: tuple[Taint, ...], _: object) -> int:
    return sum([len(taint.key) + len(taint.value) for taint in taints])


def _has_startup_taint(node: Node) -> bool:
    return any(taint.key == STARTUP_TAINT for taint in node.taints)


def _guard(annotations: NodeAnnotations | None) -> Literal["", "ours", "theirs"]:
    if annotations is not None and annotations.guard is not None:
        return "ours"
    return "theirs" if annotations is not None and annotations.disabled is not None else ""


def amounts_of(quantities: pods.Quantities) -> pods.Amounts:
    """Returns the amounts of quantities by resource, without those that cannot be read."""
    amounts = {}
    for resource, quantity in quantities.items():
        try:
            amounts[resource] = pods.amount_of(resource, quantity)
        except ParseError:
            continue
    return amounts
