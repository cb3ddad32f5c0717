"""Watches the objects that this node's exporter writes, so that a deleted object is back within a second.

An event only triggers a comparison; the writer reads the object itself. Without the permission to watch, or without the
CRD, the periodic comparison finds the deletion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from topowise import nrt
from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector, watch_again
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import kv

log = logging.getLogger(__name__)


class _Seen(msgspec.Struct, frozen=True):
    metadata: nrt.Metadata


_decode = msgspec.json.Decoder(_Seen).decode


class OwnObject:
    """Watches the object named after the node. `version` is its resourceVersion, "" while it does not exist, None until
    it is known. `changed` is called at each change, including our own."""

    def __init__(
        self, api: Api, node_name: str, changed: Callable[[], None], *, backoff: Backoff | None = None
    ) -> None:
        self._api = api
        self._query = {"fieldSelector": f"metadata.name={node_name}"}
        self._changed = changed
        self._backoff = backoff or Backoff(30.0, 1800.0)
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
