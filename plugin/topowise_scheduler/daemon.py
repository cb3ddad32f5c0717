"""The scheduler service as a daemon: reflectors fill the ledger, the extender and gRPC answer from it."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Final

from topowise import __version__
from topowise.errors import ConfigError
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.kube.credentials import SERVICE_ACCOUNT
from topowise.kube.lease import Elector
from topowise.runtime import config, health, tasks, turns
from topowise.runtime.log import kv
from topowise.runtime.turns import sliced
from topowise_scheduler import grpc_api, metrics, strategies, ui
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.cluster.nodes import Nodes
from topowise_scheduler.cluster.records import Records
from topowise_scheduler.cluster.watch import reflectors
from topowise_scheduler.configuration import Extender, LeaderElection, ReadOnly, SchedulerConfiguration
from topowise_scheduler.engine import Engine
from topowise_scheduler.extender import callers, http, verbs
from topowise_scheduler.extender.binding import Binder
from topowise_scheduler.extender.callers import Callers
from topowise_scheduler.extender.evictions import Evictions
from topowise_scheduler.extender.explaining import Explainer
from topowise_scheduler.extender.fitting import FittingVerb
from topowise_scheduler.extender.fitting import refuse as refuse_fitting
from topowise_scheduler.extender.replies import NotReady, Verb
from topowise_scheduler.extender.verbs import Verbs
from topowise_scheduler.fit_together import Fitting
from topowise_scheduler.leader.alignment import AlignmentPreemption
from topowise_scheduler.leader.defragmenter import Defragmenter
from topowise_scheduler.leader.preemptor import Preemptor
from topowise_scheduler.leader.refused_pods import RefusedPods
from topowise_scheduler.leader.requeue import Requeuer
from topowise_scheduler.leader.startup_taint import StartupTaint
from topowise_scheduler.leader.waiting_pods import WaitingPods
from topowise_scheduler.preemption import Budgets
from topowise_scheduler.view.cluster_view import ClusterView
from topowise_scheduler.volcano import verbs as volcano
from topowise_scheduler.volcano.allocations import Allocations
from topowise_scheduler.volcano.victims import Victims

log = logging.getLogger(__name__)

_OWN_NAMESPACE: Final = SERVICE_ACCOUNT / "namespace"
_TICK_S: Final = 1.0
_EXPIRIES: Final = 4
# A Pod is at most 1.5 MiB in etcd.
_MAX_MANIFEST: Final = 2 << 20
_FREEZE_S: Final = 0.1


async def run(settings: SchedulerConfiguration) -> int:
    """The daemon until it is told to stop; its exit status. Raises ConfigError or SourceError if it cannot start."""
    log.info("Starting topowise-scheduler", extra=kv(version=__version__))
    log.info("Effective configuration", extra=kv(configuration=config.effective(settings)))
    access = await credentials.load(settings.client.kubeconfig, settings.client.context)
    async with Api(access, "topowise-scheduler", timeout=settings.client.timeout) as api:
        ledger = Ledger(
            Engine(),
            time.monotonic,
            reservation_s=settings.reservations.ttl if settings.reservations.enabled else 0.0,
            max_admission_s=settings.filter.max_admission_time,
            affinity=settings.device_affinity.settings,
        )
        records, budgets, nodes = Records(), Budgets(), Nodes()
        sources = reflectors(api, ledger, records, budgets, nodes)

        def not_synced() -> str | None:
            waiting = [source.name for source in sources if not source.synced]
            return f"not yet listed: {', '.join(waiting)}" if waiting else None

        strategy = _strategy(settings, settings.scoring.strategy)
        answers = Answers(ledger, records, strategy, top_score=settings.extender.score_scale)
        view = ClusterView(ledger, answers, nodes)
        explainer = Explainer(api, view, not_synced)
        dashboard = None
        if settings.ui.enabled and settings.read_only.port:
            dashboard = ui.Dashboard(ledger, answers, view, explainer.explanations, not_synced, settings.ui.decisions)
        observer = None if dashboard is None else dashboard.decisions
        registry = metrics.registry(ledger, answers)
        metrics.watch(registry, "synced", "1 once every collection has been listed.", lambda: not_synced() is None)
        lag = turns.Lag(registry, metrics.PREFIX)
        shortage = metrics.watch_shortage(registry, ledger, answers)
        probes = health.Health()
        probes.ready["synced"] = not_synced
        fitting = Fitting(ledger, answers, view, most_reserved=settings.fit_together.most_reserved)
        evictions = Evictions(ledger, answers, budgets)
        served = verbs.table(
            # The dashboard shows what each call took, so each call does its own work.
            Verbs(answers, evictions, not_synced, observer=observer, scores_ahead=observer is None),
            Binder(
                api,
                ledger,
                records,
                not_synced,
                observer=observer,
                tells_prediction=settings.extender.predictions,
            ),
            explainer,
            FittingVerb(fitting, not_synced),
        )
        measured = http.Metrics(registry)
        application = http.Application(
            {name: verb for name, verb in served.items() if verb.query is None},
            measured,
            settings.extender.max_body_bytes,
            _callers(settings.extender),
            volcano=_volcano(settings, answers, ledger, records, budgets, not_synced)
            if settings.volcano.enabled
            else {},
        )
        # What is forwarded for people has no verb that books or binds; whether pods fit together is only told there.
        asking = FittingVerb(Fitting(ledger, answers, view, most_reserved=0), not_synced)
        pages = http.Application(
            {
                **{name: verb for name, verb in served.items() if verb.query is not None},
                "fit-together": Verb(refuse_fitting, later=asking.answer),
            },
            measured,
            _MAX_MANIFEST,
            _callers(settings.read_only),
            pages={} if dashboard is None else {"/ui": dashboard},
        )
        return await tasks.run_until_stopped(
            {
                **{f"watch {source.name}": source.run() for source in sources},
                "extender": http.serve(settings.extender, application),
                "grpc": grpc_api.serve(settings.grpc, grpc_api.Scoring(answers, view, fitting, not_synced)),
                **({"pages": http.serve(settings.read_only, pages)} if settings.read_only.port else {}),
                "clock": _tick(ledger),
                "event loop lag": lag.run(),
                "shortage": shortage.run(),
                "memory": _freeze(not_synced),
                **({} if dashboard is None else {"dashboard": dashboard.run()}),
                "leader": _lead(
                    settings.leader_election, api, _leading(settings, api, ledger, answers, nodes, view, budgets)
                ),
                "health": health.serve(settings.serving, probes, registry),
            }
        )


def _callers(port: Extender | ReadOnly) -> Callers:
    return Callers(None if port.tls is not None else callers.names(port.hosts))


def _strategy(settings: SchedulerConfiguration, name: str) -> strategies.Strategy:
    weights = {resource.name: resource.weight for resource in settings.scoring.resources}
    return strategies.make(name, weights, settings.scoring)


def _volcano(
    settings: SchedulerConfiguration,
    answers: Answers,
    ledger: Ledger,
    records: Records,
    budgets: Budgets,
    not_ready: NotReady,
) -> dict[str, Verb]:
    # Volcano says itself what it books, whether answers are to book anything by themselves or not.
    allocations = Allocations(ledger, time.monotonic, settings.reservations.ttl)
    victims = Victims(ledger, allocations, budgets)
    strategy = _strategy(settings, settings.volcano.strategy)
    volcanos = volcano.Verbs(answers, records, allocations, victims, strategy, settings.volcano.weight, not_ready)
    return volcano.table(volcanos)


async def _freeze(not_synced: Callable[[], str | None]) -> None:
    """Until everything is listed, keeps what there is out of later garbage collections again and again.

    In a large cluster a full one takes a third of a second, in which nobody is answered; hardly any of it ever dies,
    and what does dies by its reference count.
    """
    while not_synced() is not None:
        gc.freeze()
        await asyncio.sleep(_FREEZE_S)
    gc.freeze()
    await asyncio.Event().wait()


async def _tick(ledger: Ledger) -> None:
    while True:
        # Room that nobody will take is not to be kept from others until the next tick.
        for _ in range(_EXPIRIES):
            await asyncio.sleep(_TICK_S / _EXPIRIES)
            ledger.expire()
        await sliced(ledger.ticking())


def _leading(
    settings: SchedulerConfiguration,
    api: Api,
    ledger: Ledger,
    answers: Answers,
    nodes: Nodes,
    view: ClusterView,
    budgets: Budgets,
) -> Callable[[], Awaitable[None]]:
    """What the leader alone does."""
    requeue = settings.requeue
    alignment = AlignmentPreemption(ledger, answers, view, budgets)
    requeuer = Requeuer(
        api, ledger, answers.fits, interval=requeue.interval, per_second=requeue.per_second, prepare=answers.fitting
    )
    chores = {
        "requeue": (requeue.enabled, requeuer.run),
        "waiting pods": (settings.waiting_pods.tell, WaitingPods(api, ledger, answers).run),
        "start-up taint": (settings.startup_taint.enabled, StartupTaint(api, ledger, nodes).run),
        "refused pods": (settings.refused_pods.delete, RefusedPods(api, ledger).run),
        "preemptor": (settings.preemptor.enabled, Preemptor(api, ledger, alignment, settings.preemptor).run),
        "defragmenter": (
            settings.defragmenter.enabled,
            Defragmenter(api, ledger, answers, view, budgets, settings.defragmenter).run,
        ),
    }

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for name, (is_enabled, work) in chores.items():
                if is_enabled:
                    group.create_task(work(), name=name)
            # A leader with nothing to do leads all the same.
            await asyncio.Event().wait()

    return run


async def _lead(settings: LeaderElection, api: Api, work: Callable[[], Awaitable[None]]) -> None:
    if not settings.enabled:
        await work()
        return
    namespace = settings.lease_namespace or _own_namespace()
    identity = settings.identity or f"{socket.gethostname()}_{secrets.token_hex(4)}"
    await Elector(api, namespace, settings.lease_name, identity).run(work)


def _own_namespace() -> str:
    try:
        return _OWN_NAMESPACE.read_text().strip()
    except OSError as exc:
        problem = "is empty, and outside a pod there is no own namespace to take"
        raise ConfigError("leaderElection.leaseNamespace", problem) from exc
