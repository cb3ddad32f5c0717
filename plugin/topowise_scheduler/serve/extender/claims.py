"""Reads the claims of a pod that is about to be bound.

kube-scheduler has written their allocation before it calls bind, but the watch may be behind.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.runtime.log import kv
from topowise_scheduler.ledger.claim_watch import NAMESPACES, decode_claim
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.claims.ledger import Claims

log = logging.getLogger(__name__)

# All claims of a pod together. With the other waits of a bind this is more than the 2 s of kube-scheduler's httpTimeout
# in our documentation: with claims it is 10 s.
_TIMEOUT_S: Final = 2.0


class ClaimReader:
    """Brings claims into the ledger of claims."""

    def __init__(self, api: Api, claims: Claims) -> None:
        self._api = api
        self._claims = claims

    async def read(self, record: PodRecord) -> str:
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

    def may_be_extended(self, record: PodRecord) -> bool:
        """Returns whether kube-scheduler may have made a claim for extended resources of the pod, which only the newest
        status of the pod names."""
        return bool(self._claims.extended_resources(record.needs))

    def _is_allocated(self, key: str) -> bool:
        claim = self._claims.claim(key)
        return claim is not None and claim.status.allocation is not None
