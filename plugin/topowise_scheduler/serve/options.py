"""What the options need of the daemon, as far as they are enabled: watches, steps before a Binding, loops and metrics.

options/registry.py lists what they decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from topowise.kube.api import Api
from topowise.kube.credentials import needed_namespace
from topowise.kube.reflector import Reflector
from topowise.runtime import clock
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.configuration import SchedulerConfiguration
from topowise_scheduler.ledger.gates.option import PreBind
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.options.claims.claimed_nodes import ClaimSettings
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.options.registry import Enabled
from topowise_scheduler.options.steering.gate import SteeringOption
from topowise_scheduler.options.steering.leases import NodeSteering
from topowise_scheduler.options.steering.prebind import SteeringPreBind
from topowise_scheduler.serve import metrics

if TYPE_CHECKING:
    from topowise_scheduler.options.claims.ledger import Claims


def enabled(settings: SchedulerConfiguration, nodes: Nodes) -> Enabled:
    """Returns what the configuration enables."""
    claims = settings.resource_claims
    return Enabled(
        settings.device_affinity.settings,
        partial(nodes.allocatable, MARKER),
        settings.steering.enabled,
        ClaimSettings(_claims(claims.drivers), nodes.get, claims.alignment, claims.namespaces)
        if claims.enabled
        else None,
    )


class Connected:
    """The enabled options of a ledger, connected to the API server. `sources` keep them current, `prebinds` are their
    steps before a Binding."""

    def __init__(self, settings: SchedulerConfiguration, api: Api, ledger: Ledger) -> None:
        self.sources: list[Reflector[Any]] = []
        self.prebinds: list[PreBind] = []
        self._claims = ledger.gates.option(ClaimOption)
        self.claims = None if self._claims is None else self._claims.nodes.settings.claims
        """The devices and claims of the cluster, None if they are not watched."""
        self._leases: NodeSteering | None = None
        if self._claims is not None:
            # Imported on demand: most installations need neither the allocator nor selectors.
            from topowise_scheduler.options.claims import prebind, watch

            self.sources += watch.reflectors(api, self._claims.nodes.settings.claims)
            self.prebinds.append(prebind.ClaimPreBind(api, self._claims))
        steering = ledger.gates.option(SteeringOption)
        if steering is not None and settings.steering.enabled:
            self._leases = NodeSteering(
                api,
                settings.exporters.namespace or needed_namespace("steering"),
                lost=ledger.lose_label,
                unadmitted=lambda name: ledger.unadmitted(name, MARKER),
                clock=clock.monotonic,
            )
            self.sources.append(self._leases.source)
            self.prebinds.append(SteeringPreBind(self._leases, steering, ledger.reservations.forget))

    def before_gates(self, api: Api) -> list[PreBind]:
        """Returns the steps before the gate of a pod is opened. `api` writes only while this process leads."""
        steps = [step for step in self.prebinds if isinstance(step, SteeringPreBind)]
        if self._claims is None:
            return [*steps]
        from topowise_scheduler.options.claims.allocation import ClaimAllocation

        return [ClaimAllocation(api, self._claims), *steps]

    def register(self, registry: CollectorRegistry) -> None:
        """Registers the metric families of the options."""
        if self._leases is not None:
            self._leases.observe = metrics.watch_steering(registry, self._leases.results)
        if self._claims is not None:
            metrics.watch_claims(registry, self._claims)


def _claims(drivers: Sequence[str]) -> Claims:
    # Imported on demand, as above.
    from topowise_scheduler.options.claims.ledger import Claims

    return Claims(drivers)
