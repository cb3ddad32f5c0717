"""The Node of this exporter, which owns its objects, the watch of these objects, and the pace of requests that failed.

A deleted object is back within a second. An event only triggers a comparison; the writer reads the object itself.
Without the permission to watch, or without the CRD, the periodic comparison finds the deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from topowise import nrt
from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector, watch_again
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import kv
from topowise_exporter.publish.writer import OwnNode, read_own_node


class RetryPace:
    """When a request that failed may be tried again, by a monotonic clock: at boot the time of a node may jump."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._backoff = Backoff(maximum=300.0)
        self._not_before = 0.0

    @property
    def is_due(self) -> bool:
        """Whether a request may be made now."""
        return self._monotonic() >= self._not_before

    def fail(self, exc: ApiError) -> None:
        """Wait longer than the last time, and at least as long as the server asks."""
        self._not_before = self._monotonic() + self._backoff.next_delay(at_least=exc.retry_after)

    def skip(self) -> None:
        """Allow the next request at once."""
        self._not_before = 0.0

    def succeed(self) -> None:
        """The next failure starts with the shortest wait."""
        self._backoff.reset()


class Owner(NamedTuple):
    """The owner of the objects; `problem` is None if the Node was not read this time, "" if it could be read."""

    reference: nrt.OwnerReference | None
    is_gone: bool
    problem: str | None = None


class OwnNodeReader:
    """Reads the Node when it is due; after a failure at a growing interval. A Node that was read once stays the owner:
    an object without an owner would outlive a node that is being removed."""

    def __init__(self, api: Api, node_name: str, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._node_name = node_name
        self._pace = RetryPace(monotonic)
        self._node: OwnNode | None = None
        self._is_stale = True
        self._is_gone = False

    @property
    def is_due(self) -> bool:
        """Whether the next `owner` reads the Node."""
        return self._is_stale and self._pace.is_due

    @property
    def kubelet_version(self) -> str | None:
        """The version in the Node's status; None if the Node could not be read."""
        return None if self._node is None else self._node.status.nodeInfo.kubeletVersion or None

    def expire(self, *, at_once: bool = False) -> None:
        """The Node may have been replaced: a Node of the same name has another uid."""
        self._is_stale = True
        if at_once:
            self._pace.skip()

    async def owner(self) -> Owner:
        """Raises ApiError if the API server fails."""
        problem = await self._read() if self.is_due else None
        return Owner(None if self._node is None else self._node.owner(), self._is_gone, problem)

    async def _read(self) -> str:
        try:
            self._node = await read_own_node(self._api, self._node_name)
        except ApiError as exc:
            if exc.status not in (403, 404):
                raise
            self._is_gone = exc.status == 404 and self._node is not None
            self._pace.fail(exc)
            return str(exc)
        self._is_stale = self._is_gone = False
        self._pace.succeed()
        return ""


log = logging.getLogger(__name__)


class _Seen(msgspec.Struct, frozen=True):
    metadata: nrt.Metadata


_decode = msgspec.json.Decoder(_Seen).decode


class OwnObject:
    """Watches the object named after the node. `version` is its resourceVersion, "" while it does not exist, None until
    it is known. `changed` is called at each change, including our own."""

    def __init__(self, api: Api, node_name: str, changed: Callable[[], None]) -> None:
        self._api = api
        self._query = {"fieldSelector": f"metadata.name={node_name}"}
        self._changed = changed
        self._backoff = Backoff(30.0, 1800.0)
        self._condition = ""
        self.version: str | None = None

    async def run(self) -> None:
        """Watches until cancelled."""
        await watch_again(
            lambda: Reflector(self._api, nrt.PATH, _decode, self, query=self._query, gives_up_on=(403, 404)),
            self._refused,
            self._backoff,
        )

    def _refused(self, refusal: ApiError, was_synced: bool) -> None:
        self.version = None
        if str(refusal) != self._condition:
            self._condition = str(refusal)
            message = "Cannot watch the node's object, a deletion is noticed at the next comparison"
            log.info(message, extra=kv(why=refusal))

    def replace(self, items: list[_Seen]) -> None:
        """Implements Consumer: the list has the object, or is empty."""
        self._set(items[0].metadata.resourceVersion if items else "")

    def apply(self, event: EventType, item: _Seen) -> None:
        """Implements Consumer: the object was added, changed or deleted."""
        self._set("" if event == "DELETED" else item.metadata.resourceVersion)

    def _set(self, version: str) -> None:
        if version != self.version:
            self.version = version
            self._changed()
