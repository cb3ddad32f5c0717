"""The ports: kube-scheduler and Volcano use the extender's port; the port for people books nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from topowise.runtime import clock
from topowise.runtime.cpu_allowance import Allowance
from topowise_scheduler.configuration import Extender, ReadOnly
from topowise_scheduler.dashboard import Dashboard
from topowise_scheduler.ledger.holes import Holes
from topowise_scheduler.overlay.fit_together import FitTogetherService
from topowise_scheduler.serve.core import Core
from topowise_scheduler.serve.extender import callers, http, replies, verbs
from topowise_scheduler.serve.extender.binding import Binder
from topowise_scheduler.serve.extender.callers import Callers
from topowise_scheduler.serve.extender.evictions import Evictions
from topowise_scheduler.serve.extender.explaining import fit_together
from topowise_scheduler.serve.extender.replies import Verb
from topowise_scheduler.serve.extender.verbs import Verbs
from topowise_scheduler.serve.volcano import verbs as volcano
from topowise_scheduler.serve.volcano.allocations import Allocations, Victims

# 5,000 full Node objects are about 40 MB.
_MAX_BODY: Final = 64 << 20
# A Pod is at most 1.5 MiB in etcd.
_MAX_MANIFEST: Final = 2 << 20
# Share of the event loop's CPU time for all requests of people, the burst beyond it in seconds, and the peak share.
_PEOPLE_SHARE: Final = 0.05
_PEOPLE_BURST_S: Final = 1.0
_PEOPLE_PEAK: Final = 0.5


def for_schedulers(core: Core, measured: http.Metrics) -> http.Application:
    """Returns the application of the extender's port."""
    settings = core.settings.extender
    return http.Application(
        {name: verb for name, verb in _verbs(core).items() if verb.query is None},
        measured,
        _MAX_BODY,
        _callers(settings),
        volcano=_volcano(core) if core.settings.volcano.enabled else {},
    )


def for_people(core: Core, measured: http.Metrics, dashboard: Dashboard | None) -> http.Application:
    """Returns the application of the port for people: no verb books or binds, and fit-together only answers."""
    fitting = FitTogetherService(core.trial, most_reserved=0)
    fits = Verb(replies.refuse, later=partial(fit_together, fitting, core.not_synced))
    return http.Application(
        {"explain": Verb(replies.refuse, query=core.explainer.explain), "fit-together": fits},
        measured,
        _MAX_MANIFEST,
        _callers(core.settings.read_only),
        pages={} if dashboard is None else {"/ui": dashboard},
        allowance=Allowance(_PEOPLE_SHARE, _PEOPLE_BURST_S, peak=_PEOPLE_PEAK),
    )


def dashboard(core: Core, holes: Holes) -> Dashboard | None:
    """Returns the dashboard, None if it is disabled."""
    if core.decisions is None:
        return None
    explanations = core.explainer.explanations
    return Dashboard(core.ledger, core.view, explanations, core.not_synced, core.decisions, holes.loss)


def _verbs(core: Core) -> Mapping[str, Verb]:
    decisions = core.decisions
    return verbs.table(
        Verbs(
            core.answers,
            Evictions(core.ledger, core.answers, core.budgets),
            core.not_synced,
            observer=decisions,
            # The dashboard shows the duration of each call, so each call does its own work.
            scores_ahead=decisions is None,
            templates=core.templates,
        ),
        Binder(
            core.api,
            core.ledger,
            core.records,
            core.not_synced,
            observer=decisions,
            prebinds=core.options.prebinds,
        ),
        core.explainer,
        partial(fit_together, core.fitting, core.not_synced),
    )


def _volcano(core: Core) -> dict[str, Verb]:
    settings, allocations = core.settings, Allocations(core.ledger, clock.monotonic)
    return volcano.table(
        volcano.Verbs(
            core.trial,
            core.records,
            allocations,
            Victims(core.trial, allocations, core.budgets),
            core.strategy(settings.volcano.strategy),
            core.not_synced,
        )
    )


def _callers(port: Extender | ReadOnly) -> Callers:
    return Callers(None if port.tls is not None else callers.names(port.hosts))
