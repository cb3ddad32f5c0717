"""Takes back devices that were allocated for a pod whose gate was never opened, or that is gone.

The resource claim controller takes allocations back when a pod in `status.reservedFor` is gone. It does not for a pod
that still waits: the leader may have ended between the allocation and the gate, and the node of the devices may have no
room for the pod any more. The API server is asked about the pod before its devices are taken back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from topowise.errors import ApiError
from topowise.kube import paths
from topowise.kube.api import Api
from topowise.placement import GATE
from topowise.runtime import clock
from topowise_scheduler.controllers import controller
from topowise_scheduler.ledger.ledger import Ledger

if TYPE_CHECKING:
    # At run time most installations do not need these.
    from topowise_scheduler.options.claims.ledger import Claims
    from topowise_scheduler.options.claims.objects import ResourceClaim

_INTERVAL_S: Final = 5.0
# Longer than the writes of a placement take, and than the event of a deleted pod.
_UNUSED_S: Final = 30.0


class _Unused(NamedTuple):
    claim: ResourceClaim
    pod: str
    uid: str


class UnusedClaims:
    """Frees the devices of `claims`. `clock` gives seconds, monotonic."""

    def __init__(self, api: Api, ledger: Ledger, claims: Claims, clock: Callable[[], float] = clock.monotonic) -> None:
        self._api = api
        self._ledger = ledger
        self._claims = claims
        self._clock = clock
        # By claim and pod: since when the allocation is not used (seconds, monotonic).
        self._since: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        """Frees devices until cancelled."""
        await controller.run("take back devices of a claim", self.due, self._free, interval=_INTERVAL_S)

    def due(self) -> Mapping[str, _Unused]:
        """Returns the claims that no pod has used for a while."""
        now, unused = self._clock(), dict[tuple[str, str], _Unused]()
        for claim, pod, uid in self._claims.marked():
            if not self._ledger.pods.of(uid).is_assigned and uid not in self._ledger.placements:
                unused[claim.key, uid] = _Unused(claim, pod, uid)
        self._since = {key: self._since.get(key, now) for key in unused}
        return {key[0]: item for key, item in unused.items() if now - self._since[key] >= _UNUSED_S}

    async def _free(self, unused: _Unused) -> None:
        from topowise_scheduler.options.claims import allocation

        if await self._may_use(unused):
            self._since[unused.claim.key, unused.uid] = self._clock()
        else:
            await allocation.free(self._api, self._claims, unused.claim)

    async def _may_use(self, unused: _Unused) -> bool:
        """Returns whether the pod exists, and its gate is open. Raises ApiError."""
        if not unused.pod:
            return False
        path = paths.pod(unused.claim.metadata.namespace, unused.pod)
        try:
            pod = json.loads(await self._api.request("GET", path, timeout=controller.REQUEST_TIMEOUT_S))
        except ApiError as exc:
            if exc.status != 404:
                raise
            return False
        gates = [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]
        return pod["metadata"]["uid"] == unused.uid and GATE not in gates
