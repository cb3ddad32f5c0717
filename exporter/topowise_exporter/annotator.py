"""Keeps the placement annotations of this node's pods in a separate task, which never delays the loop.

The loop passes each observation. The task patches new placements, a few pods per second, and forgets deleted pods. At
the start and at an interval it lists the pods of the node, metadata only: a correct annotation needs no patch, a
removed annotation is written again, and a new pod of the same name is annotated.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api, decoded
from topowise.runtime import clock
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, kv
from topowise_exporter import exclusions
from topowise_exporter.conditions import Condition, Conditions
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.allocations import PodAllocation
from topowise_exporter.metrics import Metrics
from topowise_exporter.publish import numatopology
from topowise_exporter.publish.topology import Observation

log = logging.getLogger(__name__)

PER_SECOND: Final = 5.0
"""Patches a second and node, at most."""

# In the metric of writes.
_KIND: Final = "Pod"
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# Statuses of a pod that is gone, or whose name now belongs to a pod on another node.
_NOT_OURS: Final = (404, 422)


class Name(NamedTuple):
    """Name of a pod."""

    namespace: str
    pod: str


class _List(msgspec.Struct, frozen=True):
    class Item(msgspec.Struct, frozen=True):
        class Metadata(msgspec.Struct, frozen=True):
            name: str
            namespace: str
            annotations: dict[str, str] | None = None

        metadata: Metadata

    items: tuple[Item, ...]


class Annotator:
    """`saw` is called by the loop, `run` is the task."""

    def __init__(
        self,
        api: Api,
        node_name: str,
        metrics: Metrics,
        conditions: Conditions,
        resync: float,
        excluded: Exclusions | None = None,
        *,
        per_second: float = PER_SECOND,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        """`resync`: seconds between two lists of the node's pods."""
        self._api = api
        self._node_name = node_name
        self._metrics = metrics
        self._conditions = conditions
        self._resync = resync
        self._excluded = excluded or Exclusions()
        self._pause = 1.0 / per_second
        self._backoff = backoff or Backoff(maximum=300.0)
        self._clock = clock
        self._placements: dict[Name, str] = {}
        self._written: dict[Name, str] = {}
        self._news = asyncio.Event()
        self._last: tuple[PodAllocation, ...] | None = None

    def saw(self, seen: Observation) -> None:
        """Take the placements of an observation. Cheap if nothing has changed, and never fails."""
        if seen.allocations.pods is self._last:
            return
        self._last = seen.allocations.pods
        node_of_cpu = {cpu: node.id for node in seen.machine.nodes for cpu in node.cpus}
        pods = exclusions.apply(self._excluded, seen.allocations).pods
        texts = {Name(pod.namespace, pod.name): numatopology.placement(pod, node_of_cpu) for pod in pods}
        self._placements = {name: text for name, text in texts.items() if text is not None}
        self._written = {name: text for name, text in self._written.items() if name in self._placements}
        self._news.set()

    async def run(self) -> None:
        """Annotates until cancelled."""
        # Start with a list, so that a new version does not patch every pod of the cluster.
        due = self._clock()
        while True:
            try:
                async with asyncio.timeout(max(0.0, due - self._clock())):
                    await self._news.wait()
            except TimeoutError:
                pass
            try:
                if self._clock() >= due:
                    await self._compare()
                    due = self._clock() + self._resync * random.uniform(0.8, 1.2)
                self._news.clear()
                await self._write_all()
            except ApiError as exc:
                self._conditions.set(Condition.NO_PLACEMENT, str(exc))
                self._metrics.writes.labels(_KIND, "failed").inc()
                self._news.set()
                await asyncio.sleep(self._backoff.next_delay(at_least=exc.retry_after))
            else:
                self._conditions.clear(Condition.NO_PLACEMENT)
                self._backoff.reset()

    async def _write_all(self) -> None:
        for name in list(self._placements):
            text = self._placements.get(name)
            # Between two pods the loop may have changed the placements.
            if text is None or self._written.get(name) == text:
                continue
            try:
                await self._write(name, text)
            except ApiError:
                # The cause (such as a webhook) may affect this pod only: try it last.
                if name in self._placements:
                    self._placements[name] = self._placements.pop(name)
                raise
            await asyncio.sleep(self._pause)

    async def _write(self, name: Name, text: str) -> None:
        body = numatopology.patch(self._node_name, text)
        try:
            path = paths.pod(name.namespace, name.pod)
            await self._api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        except ApiError as exc:
            if exc.status not in _NOT_OURS:
                raise
            self._metrics.writes.labels(_KIND, "refused").inc()
            log.log(V2, "Pod is gone or on another node, not annotated", extra=kv(pod="/".join(name), why=exc))
        else:
            self._metrics.writes.labels(_KIND, "written").inc()
        # A refused placement is not tried again before it changes or the next list has the pod.
        self._written[name] = text

    async def _compare(self) -> None:
        """Replaces the written annotations of listed pods by the annotations on the API server."""
        query = {"fieldSelector": f"spec.nodeName={self._node_name}", "resourceVersion": "0"}
        answer = await self._api.request("GET", "/api/v1/pods", query=query, accept=_METADATA_ONLY)
        items = decoded(answer, _List, "a list of pods", "GET pods").items
        for item in items:
            name = Name(item.metadata.namespace, item.metadata.name)
            self._written[name] = (item.metadata.annotations or {}).get(numatopology.ANNOTATION, "")
