"""What all parts of the daemon share: the known state of the cluster, and the answers made from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from topowise import files
from topowise.errors import ConfigError
from topowise.kube.api import Api
from topowise.kube.credentials import needed_namespace
from topowise.kube.reflector import Reflector
from topowise.runtime import clock
from topowise.steering import RESOURCE as MARKER
from topowise_scheduler.configuration import ScaleUp, SchedulerConfiguration
from topowise_scheduler.dashboard import Decisions
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.gates.claimed_nodes import ClaimSettings
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods.exporter_pods import ExporterSettings, recognises
from topowise_scheduler.ledger.pods.records import Records
from topowise_scheduler.ledger.watch import reflectors
from topowise_scheduler.overlay.fit_together import FitTogetherService
from topowise_scheduler.overlay.scale_up import declared_groups
from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels, Profile
from topowise_scheduler.overlay.scale_up.template_nodes import TemplateNodes
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.serve.extender.explaining import Explainer
from topowise_scheduler.serve.extender.steering import NodeSteering
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.engine import Engine

if TYPE_CHECKING:
    from topowise_scheduler.options.claims.ledger import Claims


# Some kilobytes each; the page shows no more at once.
_DECISIONS: Final = 200


class Core:
    """Created once per daemon. `sources` keep the ledger current; `decisions` is None without a dashboard."""

    def __init__(self, settings: SchedulerConfiguration, api: Api) -> None:
        self.settings = settings
        self.api = api
        exporters, claims = settings.exporters, settings.resource_claims
        self.nodes = Nodes()
        self.claims = _claims() if claims.enabled else None
        self.ledger = Ledger(
            Engine(),
            clock.monotonic,
            max_admission_s=settings.filter.max_admission_time,
            affinity=settings.device_affinity.settings,
            markers=partial(self.nodes.allocatable, MARKER),
            steers=settings.steering.enabled,
            exporters=ExporterSettings(exporters.node_selector),
            claims=None
            if self.claims is None
            else ClaimSettings(self.claims, self.nodes.get, claims.alignment, claims.namespaces),
        )
        shows = settings.ui.enabled and bool(settings.read_only.port)
        self.decisions = Decisions(_DECISIONS, clock.wall) if shows else None
        self.records = Records(
            settings.nominator.scheduler_names if settings.nominator.enabled else (),
            None if self.decisions is None else self.decisions.seen,
            recognises(exporters.namespace),
        )
        self.budgets = Budgets()
        self.sources: list[Reflector[Any]] = reflectors(api, self.ledger, self.records, self.budgets, self.nodes)
        if self.claims is not None:
            self.sources += _claim_reflectors(api, self.claims)
        self.steering = self._steering() if settings.steering.enabled else None
        if self.steering is not None:
            self.sources.append(self.steering.source)
        strategy = self.strategy(settings.scoring.strategy)
        self.answers = Answers(self.ledger, self.records, strategy, top_score=settings.extender.score_scale)
        self.trial = Trial(self.ledger, self.answers, self.nodes)
        self.view = ClusterView(self.trial)
        self.node_groups = _declared_groups(settings.scale_up)
        self.templates = TemplateNodes(self.trial, settings.scale_up.group_labels, self.node_groups)
        self.explainer = Explainer(api, self.view, self.not_synced)
        self.fitting = FitTogetherService(self.trial, most_reserved=settings.fit_together.most_reserved)

    def not_synced(self) -> str | None:
        """Returns which collections have not been listed yet, None once all have."""
        waiting = [source.name for source in self.sources if not source.synced]
        return f"not yet listed: {', '.join(waiting)}" if waiting else None

    def _steering(self) -> NodeSteering:
        ledger = self.ledger
        return NodeSteering(
            self.api,
            self.settings.exporters.namespace or needed_namespace("steering"),
            lost=ledger.lose_label,
            unadmitted=lambda name: ledger.unadmitted(name, MARKER),
            clock=clock.monotonic,
        )

    def strategy(self, name: str) -> strategies.Strategy:
        """Returns the strategy of this name, with the configured weights and options."""
        weights = {resource.name: resource.weight for resource in self.settings.scoring.resources}
        return strategies.make(name, weights, self.settings.scoring)


def _declared_groups(settings: ScaleUp) -> Mapping[GroupLabels, Profile]:
    """Returns the profiles of the declared node groups. Raises ConfigError."""
    contents: dict[str, bytes] = {}
    for path in [path for entry in settings.declared_groups for path in (entry.file, entry.kubelet_config) if path]:
        try:
            contents[path] = files.read_regular(path)
        except OSError as exc:
            raise ConfigError("scaleUp.declaredGroups", f"{path} cannot be read: {exc.strerror}") from exc
    return declared_groups.profiles_of(settings.declared_groups, contents, settings.group_labels)


def _claims() -> Claims:
    # Imported on demand: the library of CEL, which most installations do not need.
    from topowise_scheduler.options.claims.ledger import Claims

    return Claims()


def _claim_reflectors(api: Api, claims: Claims) -> list[Reflector[Any]]:
    from topowise_scheduler.ledger import claim_watch

    return claim_watch.reflectors(api, claims)
