"""Watches the objects that this node's exporter writes, so that one that is deleted is back within a second.

An event says no more than that there is something to compare: what is on the server is read by the one who writes. Who
may not watch, or whose definition is not there, is found by the periodic comparison, as before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from topowise import nrt
from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import kv

log = logging.getLogger(__name__)

_FORBIDDEN, _NOT_FOUND = 403, 404


class _Seen(msgspec.Struct, frozen=True):
    metadata: nrt.Metadata


_decode = msgspec.json.Decoder(_Seen).decode


class OwnObject:
    """`version` is the resourceVersion of the object as the server has it, "" while there is none, None until it is
    known. `changed` is called for each change, our own too."""

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
        while True:
            reflector = Reflector(
                self._api, nrt.PATH, _decode, self, query=self._query, gives_up_on=(_FORBIDDEN, _NOT_FOUND)
            )
            try:
                await reflector.run()
            except ApiError as exc:
                refusal = exc
            if reflector.synced:
                self._backoff.reset()
            self.version = None
            self._say(refusal)
            await asyncio.sleep(self._backoff.next_delay(at_least=refusal.retry_after))

    def _say(self, refusal: ApiError) -> None:
        if str(refusal) != self._condition:
            self._condition = str(refusal)
            about = "Cannot watch the own object, one that is deleted is found by the next comparison"
            log.info(about, extra=kv(why=refusal))

    def replace(self, items: list[_Seen]) -> None:
        """As Consumer: the object, or none."""
        self._set(items[0].metadata.resourceVersion if items else "")

    def apply(self, event: EventType, item: _Seen) -> None:
        """As Consumer: it came, changed or went."""
        self._set("" if event == "DELETED" else item.metadata.resourceVersion)

    def _set(self, version: str) -> None:
        if version != self.version:
            self.version = version
            self._changed()
