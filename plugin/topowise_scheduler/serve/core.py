"""What all parts of the daemon share: the known state of the cluster, and the answers made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from topowise import files
from topowise.errors import ConfigError
from topowise.kube.api import Api
from topowise.kube.reflector import Reflector
from topowise.runtime import clock
from topowise_scheduler.configuration import ScaleUp, SchedulerConfiguration
from topowise_scheduler.dashboard import Decisions
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods.exporter_pods import ExporterSettings, recognises
from topowise_scheduler.ledger.pods.records import Records
from topowise_scheduler.ledger.watch import reflectors
from topowise_scheduler.options.registry import READERS
from topowise_scheduler.overlay.fit_together import FitTogetherService
from topowise_scheduler.overlay.scale_up import node_groups
from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels, Profile
from topowise_scheduler.overlay.scale_up.template_nodes import TemplateNodes
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.serve import options
from topowise_scheduler.serve.extender.explaining import Explainer
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.engine import Engine
from topowise_scheduler.verdicts.inter_pod import InterPodIndex

# Some kilobytes each; the page shows no more at once.
_DECISIONS: Final = 200


class Core:
    """Created once per daemon. `sources` keep the ledger current; `decisions` is None without a dashboard."""

    def __init__(self, settings: SchedulerConfiguration, api: Api) -> None:
        self.settings = settings
        self.api = api
        exporters = settings.exporters
        self.nodes = Nodes()
        self.ledger = Ledger(
            Engine(),
            clock.monotonic,
            max_admission_s=settings.filter.max_admission_time,
            exporters=ExporterSettings(exporters.node_selector),
            options=options.enabled(settings, self.nodes).options,
            inter_pod=InterPodIndex(self.nodes) if settings.placement.enabled else None,
        )
        self.options = options.Connected(settings, api, self.ledger)
        shows = settings.ui.enabled and bool(settings.read_only.port)
        self.decisions = Decisions(_DECISIONS, clock.wall) if shows else None
        self.records = Records(
            places=settings.placement.enabled,
            seen=None if self.decisions is None else self.decisions.seen,
            is_exporter=recognises(exporters.namespace),
            index=self.ledger.inter_pod,
            readers=READERS,
        )
        self.budgets = Budgets()
        self.sources: list[Reflector[Any]] = reflectors(api, self.ledger, self.records, self.budgets, self.nodes)
        self.sources += self.options.sources
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
    return node_groups.profiles_of(settings.declared_groups, contents, settings.group_labels)
