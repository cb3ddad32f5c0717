"""Pods that are moved so that a large one finds room, as `kubectl topowise defrag` and the defragmenter plan it.

The planner asks the service's ledger, which is told every change by a report of our exporter, as if that
came at once. A move is made at once too, and takes nothing from a pod's running time. Of all pods that were placed at
most SHARE are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from bench.density.mix import Shape
from sandbox.exported import exported
from topowise.kubeletconfig import KubeletConfiguration
from topowise_scheduler import defrag, kube_scheduler, report, strategies
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.nodes import Nodes
from topowise_scheduler.cluster.pods.records import Records
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.defrag import Movable
from topowise_scheduler.engine import Engine
from topowise_scheduler.kubelet import Kubelet, Machine
from topowise_scheduler.presentation.explain.cluster_view import ClusterView

SHARE: Final = 0.02
_MOST: Final = 3


class Planner:
    """The cluster as the service knows it: nodes by number, pods by uid."""

    def __init__(
        self,
        machine: Machine,
        configuration: KubeletConfiguration,
        shapes: Sequence[Shape],
        kubelets: Mapping[int, Kubelet],
    ) -> None:
        self._machine, self._configuration, self._kubelets = machine, configuration, kubelets
        self._pods = {number: _pod(shape) for number, shape in enumerate(shapes)}
        self._ledger, self._records = Ledger(Engine(), lambda: 0.0, reservation_s=0.0), Records()
        self._answers = Answers(self._ledger, self._records, strategies.make(strategies.NAMES[0], {}, Scoring()))
        self._view = ClusterView(self._ledger, self._answers, Nodes())
        self._running: dict[str, tuple[int, int]] = {}
        self._reports = 0
        for node in kubelets:
            self._report(node)

    def put(self, uid: str, shape: int, node: int) -> None:
        """A pod runs there."""
        self._running[uid] = shape, node
        self._ledger.put_pod(self._records.record(_named(self._pods[shape], uid, str(node))), is_news=False)
        self._report(node)

    def drop(self, uid: str) -> None:
        """It does not any more."""
        _, node = self._running.pop(uid)
        self._ledger.drop_pod(uid)
        self._report(node)

    def moves(self, shape: int, allowed: int) -> list[tuple[str, int, int]]:
        """Who is to be moved, in this order, so that one more finds room: uid, shape and node."""
        movers = [
            Movable(_named(self._pods[mine], uid, ""), self._records.record(_named(self._pods[mine], uid, str(node))))
            for uid, (mine, node) in self._running.items()
        ]
        wanted = _named(self._pods[shape], "wanted", "")
        names = [str(node) for node in self._kubelets]
        found = defrag.finished(
            defrag.one_more(self._answers, self._view, wanted, 1, movers, min(allowed, _MOST), names)
        )
        moved = [(step.pod.partition("/")[2], int(step.node)) for step in found.steps if step.kind == "move"]
        return [(uid, self._running[uid][0], node) for uid, node in moved]

    def _report(self, node: int) -> None:
        self._reports += 1
        made = exported(self._machine, self._configuration, self._kubelets[node])
        metadata = msgspec.structs.replace(made.metadata, name=str(node), resourceVersion=str(self._reports))
        self._ledger.reports.put(report.read(msgspec.structs.replace(made, metadata=metadata)))


PlannerOf = Callable[[Mapping[int, Kubelet]], Planner]


def _pod(shape: Shape) -> kube_scheduler.Pod:
    containers = [
        {"name": f"c{place}", "resources": {"requests": limits, "limits": limits}}
        for place, limits in enumerate(shape.containers)
    ]
    return kube_scheduler.decode(msgspec.json.encode({"metadata": {}, "spec": {"containers": containers}}))


def _named(pod: kube_scheduler.Pod, uid: str, node: str) -> kube_scheduler.Pod:
    metadata = msgspec.structs.replace(pod.metadata, name=uid, namespace="default", uid=uid)
    return msgspec.structs.replace(pod, metadata=metadata, spec=msgspec.structs.replace(pod.spec, nodeName=node))
