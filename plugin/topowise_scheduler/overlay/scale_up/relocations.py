"""Where the pods to align of nodes would go if all these nodes were removed at once.

A node that could be removed alone may not be removable together with another such node: both rely on the same free
capacity, or one relies on the other. So each relocation is made on copies of the nodes that already have the pods of
the other relocations. Its hosts have to stay, and no node with a relocation is a host.

Invariant: the relocations hold together. A relocation whose node or hosts have changed ends with all relocations
that share a host with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from topowise_scheduler.overlay.overlay import NodeCopy


class Relocations:
    """By node: the nodes that would take its pods. `copies`: these hosts with the pods of all relocations."""

    def __init__(self) -> None:
        self._hosts: dict[str, frozenset[str]] = {}
        self.copies: dict[str, NodeCopy] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._hosts

    def is_host(self, name: str) -> bool:
        """Returns whether pods of another node would go to this node."""
        return name in self.copies

    def put(self, name: str, copies: Mapping[str, NodeCopy]) -> None:
        """Adds the relocation of a node. `copies`: its hosts with all pods that would go there."""
        self._hosts[name] = frozenset(copies)
        self.copies.update(copies)

    def drop_changed(self, changed: Collection[str]) -> None:
        """Drops the relocations that may not hold any more once these nodes have changed."""
        names = set(changed)
        while outdated := {name for name, hosts in self._hosts.items() if name in names or not hosts.isdisjoint(names)}:
            for name in outdated:
                names |= self._hosts.pop(name)
        for host in names:
            self.copies.pop(host, None)
