"""The version of kube-scheduler, whose allocator of claims is predicted: that of the API server, which is upgraded just
before kube-scheduler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from topowise import digits
from topowise.errors import ApiError
from topowise.kube.api import Api
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import kv
from topowise_scheduler.options.claims.features import features_of

if TYPE_CHECKING:
    from topowise_scheduler.options.claims.ledger import Claims

log = logging.getLogger(__name__)

_PATH: Final = "/version"
_TIMEOUT_S: Final = 5.0
# An upgrade of the control plane is noticed after this time.
_INTERVAL_S: Final = 600.0


class _Version(msgspec.Struct, frozen=True):
    minor: str = ""


_decode: Final = msgspec.json.Decoder(_Version).decode


async def follow(api: Api, claims: Claims, feature_gates: Mapping[str, bool]) -> None:
    """Keeps `Claims.features` current until cancelled. `feature_gates` are those of kube-scheduler."""
    backoff = Backoff()
    while True:
        try:
            minor = await _minor(api)
        except (ApiError, msgspec.DecodeError) as exc:
            log.warning("Version of the API server cannot be read, trying again", extra=kv(why=exc))
            await asyncio.sleep(backoff.next_delay())
            continue
        backoff.reset()
        features = features_of(minor, feature_gates)
        if features != claims.features:
            log.info("Allocations of claims are predicted", extra=kv(kube_scheduler=f"1.{minor}"))
            claims.features = features
        await asyncio.sleep(_INTERVAL_S)


async def _minor(api: Api) -> int:
    """Returns the minor version of the API server, 36 for "36+". Raises ApiError, msgspec.DecodeError."""
    text = _decode(await api.request("GET", _PATH, timeout=_TIMEOUT_S)).minor
    minor = digits.natural(text.rstrip("+"), 2)
    if minor is None:
        raise msgspec.DecodeError(f"the minor version is {text!r:.40}, expected a number such as 36 or 36+")
    return minor
