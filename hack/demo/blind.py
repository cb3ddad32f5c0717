"""The same pods on the same nodes once more, placed by a scheduler that does not know NUMA nodes.

It does what kube-scheduler does by default as far as these pods go: NodeResourcesFit by the sums of a node, the node
with the largest free share of CPUs and memory (LeastAllocated), and then the kubelet has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from demo.cluster import Node
from demo.workloads import Json
from sandbox.kubelet.node import EmulatedNode
from topowise import pods, quantity

_MOST = 99


class Result(msgspec.Struct, frozen=True):
    """What became of the pods, and how many more of one shape the nodes take afterwards."""

    running: int
    refused: int
    waiting: int
    more: int


def by_sums(nodes: Iterable[Node], listed: Iterable[Json], shape: Json) -> Result:
    """Every pod where the sums say."""
    return _run(nodes, listed, shape, _roomiest)


def as_placed(nodes: Iterable[Node], listed: Iterable[Json], shape: Json, chosen: Mapping[str, str | None]) -> Result:
    """Every pod (by name) where it was sent in truth."""
    return _run(nodes, listed, shape, lambda pod, rooms: chosen[pod.metadata.name])


class _Room:
    """A node's kubelet, and what its node has left in sum."""

    def __init__(self, node: Node) -> None:
        self.kubelet = EmulatedNode.from_files(node.sysfs, node.procfs, node.kubelet_config)
        self._has = {name: quantity.for_resource(name, text) for name, text in self.kubelet.allocatable().items()}
        self._left = dict(self._has)

    def fits(self, asked: Mapping[str, int]) -> bool:
        return all(amount <= self._left.get(name, 0) for name, amount in asked.items())

    def free_share(self, asked: Mapping[str, int]) -> float:
        return sum((self._left[name] - asked.get(name, 0)) / self._has[name] for name in ("cpu", "memory"))

    def admit(self, pod: pods.Pod) -> bool:
        if not self.kubelet.admit(pod).admitted:
            return False
        for name, amount in pods.needs(pod).requests.items():
            self._left[name] = self._left.get(name, 0) - amount
        return True


def _roomiest(pod: pods.Pod, rooms: Mapping[str, _Room]) -> str | None:
    asked = pods.needs(pod).requests
    fitting = [name for name, room in rooms.items() if room.fits(asked)]
    return max(fitting, key=lambda name: rooms[name].free_share(asked)) if fitting else None


def _run(
    nodes: Iterable[Node],
    listed: Iterable[Json],
    shape: Json,
    choose: Callable[[pods.Pod, Mapping[str, _Room]], str | None],
) -> Result:
    rooms = {node.name: _Room(node) for node in nodes}
    running = refused = waiting = 0
    for document in listed:
        pod = _decoded(document, document["metadata"]["name"])
        name = choose(pod, rooms)
        if name is None:
            waiting += 1
        elif name not in rooms or rooms[name].admit(pod):
            # A node with a real kubelet cannot be asked twice; what was sent there runs there.
            running += 1
        else:
            refused += 1
    more = 0
    for room in rooms.values():
        while more < _MOST and room.admit(_decoded(shape, f"more-{more}")):
            more += 1
    return Result(running, refused, waiting, more)


def _decoded(document: Json, uid: str) -> pods.Pod:
    return pods.decode(msgspec.json.encode({**document, "metadata": {**document["metadata"], "uid": uid}}))
