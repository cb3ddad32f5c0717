"""Who is nominated where, by priority: pods that do not stand in the way of those of a higher one.

kube-scheduler does not count nominated pods of lower priority (addGENominatedPods). Of thousands that are nominated in
a burst mostly none is lesser than the pod of a question, so nothing here goes through a list of them.

Invariant: a pod is in here exactly as long as its node has it as no more than nominated.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Set

_NOBODY: Mapping[str, Set[str]] = {}


class LesserPods:
    """Nominated pods by priority and node. Not thread-safe."""

    def __init__(self) -> None:
        self._levels: dict[int, dict[str, set[str]]] = {}
        self._places: dict[str, tuple[int, str]] = {}

    def put(self, uid: str, priority: int, node: str) -> None:
        """A pod is nominated for a node."""
        self.drop(uid)
        self._places[uid] = priority, node
        self._levels.setdefault(priority, {}).setdefault(node, set()).add(uid)

    def drop(self, uid: str) -> None:
        """It is not any more, or is surer to come than that."""
        priority, node = self._places.pop(uid, (0, ""))
        if not node:
            return
        level = self._levels[priority]
        level[node].discard(uid)
        if not level[node]:
            del level[node]
        if not level:
            del self._levels[priority]

    def than(self, priority: int) -> Mapping[str, Set[str]]:
        """By node those of a lower priority; not to be changed."""
        found = [level for mine, level in self._levels.items() if mine < priority]
        if len(found) < 2:
            return found[0] if found else _NOBODY
        nodes: dict[str, set[str]] = {}
        for level in found:
            for node, uids in level.items():
                nodes.setdefault(node, set()).update(uids)
        return nodes

    def on(self, node: str, priority: int) -> Set[str]:
        """Those of a lower priority on one node."""
        found = [level[node] for mine, level in self._levels.items() if mine < priority and node in level]
        return frozenset().union(*found) if found else frozenset()

    def with_itself(self, uid: str, priority: int, places: Set[str]) -> Mapping[str, Set[str]]:
        """By node those of a lower priority, and at its own places the pod itself."""
        lesser = self.than(priority)
        mine: dict[str, Set[str]] = {name: lesser.get(name, frozenset()) | {uid} for name in places}
        if not mine or not lesser:
            return mine or lesser
        return ChainMap(mine, lesser)  # type: ignore[arg-type]
