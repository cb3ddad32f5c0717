"""The pods of the demo, and the same pods on the same nodes by a scheduler that does not know NUMA nodes.

Each pod shows a decision that a NUMA-aware scheduler has to get right. The blind scheduler does what kube-
scheduler does by default with these pods: NodeResourcesFit by the sums of a node, and the node with the largest
free share of CPUs and memory (LeastAllocated). The kubelet model then admits or refuses the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from demo.cluster import SCHEDULER, Node
from sandbox.kubelet.node import EmulatedNode
from topowise import pods, quantity

Json = dict[str, Any]


def _pod(name: str, story: str, *containers: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": {"demo.topowise.io/story": story}},
        "spec": {"containers": list(containers), "schedulerName": SCHEDULER, "priority": 0},
    }


def _guaranteed(name: str, **amounts: str) -> Json:
    """Returns a container whose requests equal its limits; keys are resource names."""
    return {
        "name": name,
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
    }


def _burstable(name: str, **amounts: str) -> Json:
    return {"name": name, "image": "registry.k8s.io/pause:3.10", "resources": {"requests": dict(amounts)}}


PODS: tuple[Json, ...] = (
    _pod(
        "web", "burstable, so no kubelet aligns it: it may go anywhere", _burstable("nginx", cpu="500m", memory="256Mi")
    ),
    _pod(
        "cache",
        "whole CPUs and memory from one NUMA node",
        _guaranteed("redis", cpu="6", memory="24Gi"),
    ),
    _pod(
        "router",
        "CPUs, 2 MiB pages and a virtual function of a NIC, all on the NIC's node",
        _guaranteed("dpdk", cpu="8", memory="4Gi", **{"hugepages-2Mi": "512Mi", "intel.com/e810_vf": "1"}),
    ),
    _pod(
        "trainer",
        "two containers, a GPU each: they may be on different NUMA nodes",
        _guaranteed("rank-0", cpu="6", memory="20Gi", **{"nvidia.com/gpu": "1"}),
        _guaranteed("rank-1", cpu="6", memory="20Gi", **{"nvidia.com/gpu": "1"}),
    ),
    _pod(
        "database",
        "needs more CPUs than a NUMA node of the small machines has",
        _guaranteed("postgres", cpu="22", memory="48Gi"),
    ),
    _pod(
        "database-2",
        "equal to database: only the second socket is free for it",
        _guaranteed("postgres", cpu="22", memory="48Gi"),
    ),
    _pod("giant", "no NUMA node of any machine is large enough", _guaranteed("solver", cpu="40", memory="16Gi")),
)


_MOST = 99


class Result(msgspec.Struct, frozen=True):
    """The phases of the pods, and how many `more` pods of a shape the nodes admit afterwards."""

    running: int
    refused: int
    waiting: int
    more: int


def by_sums(nodes: Iterable[Node], listed: Iterable[Json], shape: Json) -> Result:
    """Returns the result for the nodes that the sums favour."""
    return _run(nodes, listed, shape, _roomiest)


def as_placed(nodes: Iterable[Node], listed: Iterable[Json], shape: Json, chosen: Mapping[str, str | None]) -> Result:
    """Returns the result for the nodes that were `chosen`, by name of pod."""
    return _run(nodes, listed, shape, lambda pod, rooms: chosen[pod.metadata.name])


class _Room:
    """A node's kubelet, and the sums of the node's free resources."""

    def __init__(self, node: Node) -> None:
        self.kubelet = EmulatedNode.from_files(node.sysfs, node.procfs, node.kubelet_config)
        self._has = {name: quantity.for_resource(name, text) for name, text in self.kubelet.allocatable().items()}
        self._left = dict(self._has)

    def fits(self, requests: Mapping[str, int]) -> bool:
        return all(amount <= self._left.get(name, 0) for name, amount in requests.items())

    def free_share(self, requests: Mapping[str, int]) -> float:
        return sum((self._left[name] - requests.get(name, 0)) / self._has[name] for name in ("cpu", "memory"))

    def admit(self, pod: pods.Pod) -> bool:
        if not self.kubelet.admit(pod).admitted:
            return False
        for name, amount in pods.needs(pod).requests.items():
            self._left[name] = self._left.get(name, 0) - amount
        return True


def _roomiest(pod: pods.Pod, rooms: Mapping[str, _Room]) -> str | None:
    requests = pods.needs(pod).requests
    fitting = [name for name, room in rooms.items() if room.fits(requests)]
    return max(fitting, key=lambda name: rooms[name].free_share(requests)) if fitting else None


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
            # A real kubelet cannot repeat an admission; its pods count as running.
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
