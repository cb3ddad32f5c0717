"""The step of claims before a Binding: the claims of the pod are read.

kube-scheduler has written their allocation before it calls bind, but the watch may be behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime.log import kv
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.options.claims.watch import NAMESPACES, decode_claim

log = logging.getLogger(__name__)

# All claims of a pod together. With the other waits of a bind this is more than the 2 s of kube-scheduler's httpTimeout
# in our documentation: with claims it is 10 s.
_TIMEOUT_S: Final = 2.0


class ClaimPreBind:
    """See `PreBind`. Brings claims into the ledger of claims."""

    def __init__(self, api: Api, option: ClaimOption) -> None:
        self._api = api
        self._nodes = option.nodes
        self._claims = option.nodes.settings.claims

    def reads_anew(self, record: PodRecord) -> bool:
        """See `PreBind`. kube-scheduler may have made a claim for extended resources of the pod, which only the newest
        status of the pod names."""
        return bool(self._claims.extended_resources(record.needs))

    def wait_s(self, record: PodRecord) -> float:
        """See `PreBind`. A read waits for no other bind."""
        return 0.0

    async def prebind(self, record: PodRecord, node: str, book: Callable[[PodRecord], str]) -> tuple[PodRecord, str]:
        """See `PreBind`."""
        problem = await self._read(record) if record.claims else ""
        return record, problem if problem and self._nodes.is_required(record) else ""

    async def unreserve(self, record: PodRecord, node: str) -> None:
        """See `PreBind`. What was read stays right."""

    async def _read(self, record: PodRecord) -> str:
        """Reads the claims of a pod that have no allocation in the ledger. Returns why a claim cannot be read, "" if
        all allocations are known."""
        missing = [name for name in record.claims if name and not self._is_allocated(f"{record.namespace}/{name}")]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                for name in missing:
                    path = paths.path(NAMESPACES, record.namespace, "resourceclaims", name)
                    self._claims.put_claim(decode_claim(await self._api.request("GET", path, timeout=_TIMEOUT_S)))
        except (ApiError, TimeoutError, msgspec.DecodeError) as exc:
            why = f"no answer within {_TIMEOUT_S:g} s" if isinstance(exc, TimeoutError) else str(exc)
            log.warning("Claims of a pod cannot be read", extra=kv(namespace=record.namespace, why=why))
            return f"the claims of the pod cannot be read: {why}"
        return ""

    def _is_allocated(self, key: str) -> bool:
        claim = self._claims.claim(key)
        return claim is not None and claim.status.allocation is not None
