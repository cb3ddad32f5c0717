"""An emulation of cluster-autoscaler's scale-up for one node group, where its binary is missing.

It follows cluster-autoscaler 1.36, as far as these tests need it:

- unschedulable are pods without a node and a nomination, with the reason Unschedulable and a priority of at least -10
  (utils/kubernetes/listers.go, core/utils/expendable.go);
- they are first packed onto the nodes that exist or are on their way, by kube-scheduler's filters without extenders
  (core/podlistprocessor/filter_out_schedulable.go);
- the others are packed onto copies of a node of the group, each with a host name of its own
  (estimator/binpacking_estimator.go, simulator/node_info_utils.go), and as many nodes are added.

Filters are those of `topowise_scheduler.verdicts.kube_scheduler`, and required anti-affinity on the host name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from fake_cloud import INSTANCE_TYPE, FakeCloud
from topowise import pods
from topowise.kube.api import Api
from topowise_scheduler.ledger.nodes import STARTUP_TAINT, Nodes
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Node

Json = dict[str, Any]
_CUTOFF: Final = -10
_SCAN_S: Final = 1.0


class _Simulated:
    """A node of the simulation with the sums of its pods, and the labels of its pods."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._used: dict[str, int] = {"pods": 0}
        self._labels: list[Json] = []

    def add(self, document: Json) -> None:
        self._labels.append(document["metadata"].get("labels") or {})
        self._used["pods"] += 1
        for resource, amount in _needs(document).requests.items():
            self._used[resource] = self._used.get(resource, 0) + amount

    def take(self, document: Json) -> bool:
        """Adds the pod if kube-scheduler's filters pass it."""
        pod = kube_scheduler.decode(json.dumps(document).encode())
        if kube_scheduler.refusal(self._node, pod.spec, _needs(document), self._used) is not None:
            return False
        if any(key in labels for key in _apart_from(document) for labels in self._labels):
            return False
        self.add(document)
        return True


class EmulatedAutoscaler:
    """Scales the group of a `FakeCloud`, as an async context."""

    def __init__(self, api: Api, cloud: FakeCloud) -> None:
        self._api, self._cloud = api, cloud
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="emulated autoscaler")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_SCAN_S)
            if missing := await self._missing():
                await self._cloud.add(missing)

    async def _missing(self) -> int:
        """Returns how many nodes the unschedulable pods need."""
        documents = await self._list("/api/v1/pods")
        reader = Nodes()
        members = {
            document["metadata"]["name"]: reader.decode(json.dumps(document).encode())
            for document in await self._list("/api/v1/nodes")
        }
        tainted = {node.name for node in members.values() if any(taint.key == STARTUP_TAINT for taint in node.taints)}
        # A registered node that is not ready, or has a start-up taint (--startup-taint), counts as on its way
        # (clusterstate.GetUpcomingNodes, utils/taints).
        ready = {
            name: node
            for name, node in members.items()
            if node.is_ready and node.allocatable.get("cpu") and name not in tainted
        }
        simulated = {name: _Simulated(node) for name, node in ready.items()}
        for document in documents:
            if (node := simulated.get(document["spec"].get("nodeName", ""))) is not None and not _has_ended(document):
                node.add(document)
        example = next(node for node in ready.values() if INSTANCE_TYPE in node.labels)
        names = iter(range(1_000_000))
        present = [*simulated.values()]
        present += [_template(example, names) for name in self._cloud.instances if name not in ready]
        new: list[_Simulated] = []
        for document in sorted(filter(_is_unschedulable, documents), key=lambda document: -_priority(document)):
            if any(node.take(document) for node in present) or any(node.take(document) for node in new):
                continue
            node = _template(example, names)
            if node.take(document):
                new.append(node)
        return len(new)

    async def _list(self, path: str) -> list[Json]:
        return list(json.loads(await self._api.request("GET", path))["items"])


def _template(example: Node, names: Iterator[int]) -> _Simulated:
    name = f"template-node-for-pool-{next(names)}"
    return _Simulated(msgspec.structs.replace(example, name=name, hostname=name, taints=()))


def _needs(document: Json) -> pods.Needs:
    return pods.needs(pods.decode(json.dumps(document).encode()))


def _apart_from(document: Json) -> Iterator[str]:
    """Yields the labels whose pods may not be on the same node."""
    terms = document["spec"].get("affinity", {}).get("podAntiAffinity", {})
    for term in terms.get("requiredDuringSchedulingIgnoredDuringExecution", ()):
        assert term["topologyKey"] == kube_scheduler.HOSTNAME
        for requirement in term["labelSelector"]["matchExpressions"]:
            assert requirement["operator"] == "Exists"
            yield requirement["key"]


def _priority(document: Json) -> int:
    return int(document["spec"].get("priority") or 0)


def _has_ended(document: Json) -> bool:
    return document["status"].get("phase") in ("Succeeded", "Failed")


def _is_unschedulable(document: Json) -> bool:
    spec, status, metadata = document["spec"], document["status"], document["metadata"]
    if spec.get("nodeName") or status.get("nominatedNodeName") or metadata.get("deletionTimestamp"):
        return False
    conditions = status.get("conditions", ())
    is_refused = any(item["type"] == "PodScheduled" and item.get("reason") == "Unschedulable" for item in conditions)
    return is_refused and not _has_ended(document) and _priority(document) >= _CUTOFF
