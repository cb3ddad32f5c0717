"""The options that exist, in the order in which they are asked: the one place that knows all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from topowise_scheduler.ledger.gates.option import Cluster, Option
from topowise_scheduler.ledger.pods.demands import Reader
from topowise_scheduler.options.claims.annotation import READER as CLAIMS
from topowise_scheduler.options.claims.claimed_nodes import ClaimedNodes, ClaimSettings
from topowise_scheduler.options.claims.gate import ClaimOption, ClaimsAreOff
from topowise_scheduler.options.device_affinity.gate import ChanceOption, DeviceAffinityOption
from topowise_scheduler.options.device_affinity.outcomes import READER as DEVICE_AFFINITY
from topowise_scheduler.options.device_affinity.outcomes import Settings
from topowise_scheduler.options.steering.annotation import READER as STEERING
from topowise_scheduler.options.steering.gate import Markers, Source, SteeringOption, may_be_steered, no_markers

READERS: Final[Sequence[Reader]] = (DEVICE_AFFINITY, STEERING, CLAIMS)
"""Also of options that are off: a pod that asks for one is refused, not placed by chance."""


class Enabled(NamedTuple):
    """What is enabled.

    `affinity` is what is known of device plug-ins, and what pods that require near devices have to be content with.
    `markers` and `steers`: see SteeringOption. `claims`: devices and claims, None if they are not watched; no pod that
    requires to be near them fits then, unless they are ignored (`ignores_claims`).
    """

    affinity: Settings = Settings()
    markers: Markers = no_markers
    steers: bool = False
    claims: ClaimSettings | None = None
    ignores_claims: bool = False

    def options(self, cluster: Cluster) -> Sequence[Option]:
        """Makes the options (ledger/gates/option.py)."""
        markers = self.markers if self.steers else no_markers
        claimed = None if self.claims is None else ClaimedNodes(cluster, self.claims, markers)
        near = DeviceAffinityOption(cluster, self.affinity, partial(may_be_steered, markers))
        sources: list[Source] = [near] if claimed is None else [claimed, near]
        steering = SteeringOption(cluster, sources, self.markers, steers=self.steers)
        options: list[Option] = [near, steering]
        if claimed is not None:
            options.append(ClaimOption(cluster, claimed, steering))
        elif not self.ignores_claims:
            options.append(ClaimsAreOff())
        return [*options, ChanceOption(cluster, self.affinity)]
