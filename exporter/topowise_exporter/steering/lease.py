"""The node's Lease: a watch of the scheduler's request, and the write of the status.

The watch brings an event within milliseconds. A request from a list has an unknown age, so it is not taken: the
scheduler may have given it up. Only the newest of several events counts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from topowise import steering
from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import MERGE_PATCH, Api
from topowise.kube.reflector import EventType, Reflector
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import OncePerChange, kv
from topowise.steering import Status

log = logging.getLogger(__name__)

_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces"


class _Lease(msgspec.Struct, frozen=True):
    class Metadata(msgspec.Struct, frozen=True):
        annotations: dict[str, str] | None = None

    metadata: Metadata


_decode = msgspec.json.Decoder(_Lease).decode


class SteeringLease:
    """`changed` receives the text of the request, "" without a request, and whether an event brought it."""

    def __init__(self, api: Api, namespace: str, node: str, changed: Callable[[str, bool], None]) -> None:
        self._api = api
        self._name = steering.lease_name(node)
        self._collection = paths.path(_LEASES, namespace, "leases")
        self._changed = changed
        self._status: Status | None = None
        self._has_status = asyncio.Event()
        self._failure = OncePerChange()

    async def watch(self) -> None:
        """Watches until cancelled. Before the scheduler has created the Lease, the list is empty."""
        query = {"fieldSelector": f"metadata.name={self._name}"}
        await Reflector(self._api, self._collection, _decode, self, query=query).run()

    def replace(self, items: list[_Lease]) -> None:
        """Implements Consumer: the list has the Lease, or is empty."""
        self._changed(_request(items[0]) if items else "", False)

    def apply(self, event: EventType, item: _Lease) -> None:
        """Implements Consumer: the Lease was created, changed or deleted."""
        self._changed("" if event == "DELETED" else _request(item), True)

    def put(self, status: Status) -> None:
        """Writes the status soon. A status that is not written yet is replaced."""
        self._status = status
        self._has_status.set()

    async def write(self) -> None:
        """Writes statuses until cancelled."""
        # A scheduler waits some seconds for an answer, also after an outage of the API server.
        backoff = Backoff(0.1, 5.0)
        while True:
            await self._has_status.wait()
            self._has_status.clear()
            if (status := self._status) is None:
                continue
            try:
                await self._patch(status)
            except ApiError as exc:
                if self._failure.is_change(str(exc)):
                    message = "Cannot write the status of a steering request, trying again"
                    log.warning(message, extra=kv(lease=self._name, why=exc))
                # The Lease may be gone: then nothing has to be written.
                if exc.status != 404:
                    self._has_status.set()
                await asyncio.sleep(backoff.next_delay(at_least=exc.retry_after))
            else:
                backoff.reset()
                self._failure.clear()

    async def _patch(self, status: Status) -> None:
        body = {"metadata": {"annotations": {steering.STATUS: steering.encode(status)}}}
        path = paths.path(self._collection, self._name)
        await self._api.request("PATCH", path, body=json.dumps(body).encode(), content_type=MERGE_PATCH)


def _request(lease: _Lease) -> str:
    return (lease.metadata.annotations or {}).get(steering.REQUEST, "")
