"""Keeps the placement annotations of this node's pods, beside the loop and never in its way.

The loop hands over what it saw; a task of its own patches what is new, some pods a second, and forgets pods that are
gone. At first, and now and then, the pods of the node are listed, metadata only: what is there needs no patch, an
annotation that somebody took away is put back, and a pod that was replaced by another of its name gets its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, kv
from topowise_exporter import exclusions
from topowise_exporter.conditions import Conditions
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.model import PodAllocation
from topowise_exporter.metrics import Metrics
from topowise_exporter.publish import placements
from topowise_exporter.publish.topology import Observation

log = logging.getLogger(__name__)

_NO_PLACEMENT = "Cannot annotate pods with their placement, trying again; the node's own object is not affected"

PER_SECOND: Final = 5.0
"""Patches a second and node, at most."""

# In the metric of writes.
_KIND: Final = "Pod"
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# The pod is gone, or another of its name is on another node; as the API server says the latter.
_NOT_OURS: Final = (404, 422)


class Name(NamedTuple):
    """Of a pod."""

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
        clock: Callable[[], float] = time.monotonic,
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
        self._wanted: dict[Name, str] = {}
        self._written: dict[Name, str] = {}
        self._news = asyncio.Event()
        self._last: tuple[PodAllocation, ...] | None = None

    def saw(self, seen: Observation) -> None:
        """What the pods of the node hold now. Cheap if nothing has changed, and never fails."""
        if seen.allocations.pods is self._last:
            return
        self._last = seen.allocations.pods
        node_of_cpu = {cpu: node.id for node in seen.machine.nodes for cpu in node.cpus}
        pods = exclusions.apply(self._excluded, seen.allocations).pods
        texts = {Name(pod.namespace, pod.name): placements.placement(pod, node_of_cpu) for pod in pods}
        self._wanted = {name: text for name, text in texts.items() if text is not None}
        self._written = {name: text for name, text in self._written.items() if name in self._wanted}
        self._news.set()

    async def run(self) -> None:
        """Annotates until cancelled."""
        # At first what is there already, so that a new version does not patch every pod of the cluster.
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
                    due = self._clock() + self._next_resync()
                self._news.clear()
                await self._write_all()
            except ApiError as exc:
                self._conditions.set(_NO_PLACEMENT, str(exc))
                self._metrics.writes.labels(_KIND, "failed").inc()
                self._news.set()
                await asyncio.sleep(self._backoff.next_delay(at_least=exc.retry_after))
            else:
                self._conditions.clear(_NO_PLACEMENT)
                self._backoff.reset()

    def _next_resync(self) -> float:
        return self._resync * random.uniform(0.8, 1.2)

    async def _write_all(self) -> None:
        for name in list(self._wanted):
            text = self._wanted.get(name)
            # Between two pods the loop may have seen something else.
            if text is None or self._written.get(name) == text:
                continue
            try:
                await self._write(name, text)
            except ApiError:
                # What is wrong with this one (a webhook that says no) need not be wrong with the others.
                if name in self._wanted:
                    self._wanted[name] = self._wanted.pop(name)
                raise
            await asyncio.sleep(self._pause)

    async def _write(self, name: Name, text: str) -> None:
        body = placements.patch(self._node_name, text)
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
        # What was refused is not tried again before it changes, or is found in the list of the node's pods.
        self._written[name] = text

    async def _compare(self) -> None:
        """What is written is what the API server has."""
        query = {"fieldSelector": f"spec.nodeName={self._node_name}", "resourceVersion": "0"}
        answer = await self._api.request("GET", "/api/v1/pods", query=query, accept=_METADATA_ONLY)
        try:
            items = msgspec.json.decode(answer, type=_List).items
        except (msgspec.DecodeError, ValueError) as exc:
            raise ApiError(0, "BadAnswer", f"the answer is no list of pods: {exc}", request="GET pods") from exc
        self._written = annotated(items, self._written)


def annotated(items: tuple[_List.Item, ...], written: Mapping[Name, str]) -> dict[Name, str]:
    """The annotations of the node's pods as they are; of pods that are not in the list, as they were written."""
    found = {
        Name(item.metadata.namespace, item.metadata.name): (item.metadata.annotations or {}).get(
            placements.ANNOTATION, ""
        )
        for item in items
    }
    return {**written, **found}
