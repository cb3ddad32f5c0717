"""The options that exist, in the order in which they are asked: the one place that knows all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from topowise_scheduler.ledger.gates.option import Cluster, Option
from topowise_scheduler.ledger.pods.demands import Reader
from topowise_scheduler.options import device_affinity
from topowise_scheduler.options.claims import annotation as claim_annotation
from topowise_scheduler.options.claims.claimed_nodes import ClaimedNodes, ClaimSettings
from topowise_scheduler.options.claims.gate import ClaimOption, ClaimsAreOff
from topowise_scheduler.options.device_affinity.gate import ChanceOption, DeviceAffinityOption
from topowise_scheduler.options.steering import annotation as steering_annotation
from topowise_scheduler.options.steering.gate import Markers, Source, SteeringOption, may_be_steered, no_markers

READERS: Final[Sequence[Reader]] = (device_affinity.READER, steering_annotation.READER, claim_annotation.READER)
"""Also of options that are off: a pod that asks for one is refused, not placed by chance."""


class Enabled(NamedTuple):
    """What is enabled.

    `affinity` is what is known of device plug-ins, and what pods that require near devices have to be content with.
    `markers` and `steers`: see SteeringOption. `claims`: devices and claims, None if they are not watched; no pod that
    requires to be near them fits then, unless they are ignored (`ignores_claims`).
    """

    affinity: device_affinity.Settings = device_affinity.Settings()
    markers: Markers = no_markers
    steers: bool = False
    claims: ClaimSettings | None = None
    ignores_claims: bool = False

    def options(self, cluster: Cluster) -> Sequence[Option]:
        """Makes the options (ledger/gates/option.py)."""
        claimed = None if self.claims is None else ClaimedNodes(cluster, self.claims)
        markers = self.markers if self.steers else no_markers
        near = DeviceAffinityOption(cluster, self.affinity, partial(may_be_steered, markers))
        sources: list[Source] = [near] if claimed is None else [claimed, near]
        steering = SteeringOption(cluster, sources, self.markers, steers=self.steers)
        options: list[Option] = [near, steering]
        if claimed is not None:
            options.append(ClaimOption(cluster, claimed, steering))
        elif not self.ignores_claims:
            options.append(ClaimsAreOff())
        return [*options, ChanceOption(cluster, self.affinity)]
