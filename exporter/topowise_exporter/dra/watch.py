"""Watches this node's ResourceSlices.

Only the first sync waits for them, for a short time; a sync uses the present state. While the API server does not
answer, the last known devices stay. If the API is not served (DRA is off, or before 1.32) or not permitted, devices of
claims are in no zone: the log says so once, and the watch is retried ever more rarely. The field selector restricts the
answer to this node, and is an index of the API server's watch cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector, watch_again
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import kv
from topowise_exporter.dra.slices import Devices, Slice, decode, devices_of

log = logging.getLogger(__name__)

PATHS: Final = tuple(f"/apis/resource.k8s.io/{version}/resourceslices" for version in ("v1", "v1beta2", "v1beta1"))
_FORBIDDEN: Final = 403


class ResourceSlices:
    """Keeps `devices`, the same object while no device changes; `changed` is called at each change."""

    def __init__(
        self, api: Api, node_name: str, changed: Callable[[], None], *, backoff: Backoff | None = None
    ) -> None:
        self._api = api
        self._query = {"fieldSelector": f"spec.nodeName={node_name}"}
        self._changed = changed
        self._backoff = backoff or Backoff(30.0, 1800.0)
        self._slices: dict[str, Slice] = {}
        self._refusal = ""
        self._answered = asyncio.Event()
        self.devices: Devices = {}

    async def answered(self, at_most: float) -> None:
        """Waits for the API server's first answer, also a refusal; at most `at_most` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                await self._answered.wait()

    async def run(self) -> None:
        """Watches until cancelled."""
        await watch_again(self._reflector, self._refused, self._backoff)

    def _reflector(self) -> Reflector[Slice]:
        return Reflector(
            self._api, PATHS[0], decode, self, query=self._query, instead=PATHS[1:], gives_up_on=(_FORBIDDEN, 404)
        )

    def _refused(self, refusal: ApiError, was_synced: bool) -> None:
        if was_synced:
            # An upgrade of the API server may have removed the version. The devices stay until the next try.
            return
        if str(refusal) != self._refusal:
            self._refusal = str(refusal)
            level = logging.WARNING if refusal.status == _FORBIDDEN else logging.INFO
            log.log(level, "ResourceSlices cannot be read, devices of claims are in no zone", extra=kv(why=refusal))
        self._slices.clear()
        self._publish({})

    def replace(self, items: list[Slice]) -> None:
        """Implements Consumer: all slices of the node."""
        self._refusal = ""
        self._slices = {item.name: item for item in items}
        self._publish(devices_of(self._slices.values(), self.devices))

    def apply(self, event: EventType, item: Slice) -> None:
        """Implements Consumer: a slice was added, changed or deleted."""
        if event == "DELETED":
            self._slices.pop(item.name, None)
        else:
            self._slices[item.name] = item
        self._publish(devices_of(self._slices.values(), self.devices))

    def _publish(self, devices: Devices) -> None:
        self._answered.set()
        if devices != self.devices:
            self.devices = devices
            self._changed()
