"""The scheduler service as a daemon: reflectors fill the ledger, the extender and gRPC answer from it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from topowise import __version__
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.runtime import config, event_loop, health, tasks
from topowise.runtime.event_loop import sliced
from topowise.runtime.heap import Heap
from topowise.runtime.log import kv
from topowise_scheduler.configuration import SchedulerConfiguration
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.serve import metrics, ports
from topowise_scheduler.serve.core import Core
from topowise_scheduler.serve.extender import http
from topowise_scheduler.serve.leader import Leader

log = logging.getLogger(__name__)

_TICK_S: Final = 1.0
_EXPIRIES: Final = 4


async def run(settings: SchedulerConfiguration) -> int:
    """The daemon until it is told to stop; its exit status. Raises ConfigError or SourceError if it cannot start."""
    log.info("Starting topowise-scheduler", extra=kv(version=__version__))
    log.info("Effective configuration", extra=kv(configuration=config.effective(settings)))
    access = await credentials.load(settings.client.kubeconfig)
    async with Api(access, "topowise-scheduler") as api:
        return await _run(Core(settings, api))


async def _run(core: Core) -> int:
    settings, ledger = core.settings, core.ledger
    leader = Leader(core)
    registry = metrics.registry(ledger, core.answers)
    metrics.watch(registry, "synced", "1 once every collection has been listed.", lambda: core.not_synced() is None)
    measured = http.Metrics(registry)
    shortage = metrics.watch_shortage(registry, ledger, core.view)
    core.options.register(registry)
    pages = ports.for_people(core, measured, ports.dashboard(core, shortage.holes))
    probes = health.Health()
    probes.ready["synced"] = core.not_synced
    return await tasks.run_until_stopped(
        {
            **{f"watch {source.name}": source.run() for source in core.sources},
            "extender": http.serve(settings.extender, ports.for_schedulers(core, measured)),
            **({"grpc": _grpc(core)} if settings.grpc.socket or settings.grpc.port else {}),
            **({"pages": http.serve(settings.read_only, pages)} if settings.read_only.port else {}),
            "clock": _tick(ledger),
            "event loop lag": event_loop.Lag(registry, metrics.PREFIX).run(),
            "shortage": shortage.run(),
            "memory": Heap().run(),
            "leader": leader.run(),
            **({} if leader.admission_checks is None else {"admission checks": leader.admission_checks.run()}),
            "health": health.serve(settings.serving, probes, registry),
        }
    )


async def _grpc(core: Core) -> None:
    # Imported on demand: 11 MB that most installations do not need.
    from topowise_scheduler.serve import grpc_api

    scoring = grpc_api.ScoringService(core.answers, core.view, core.fitting, core.not_synced, core.templates)
    await grpc_api.serve(core.settings.grpc, scoring)


async def _tick(ledger: Ledger) -> None:
    while True:
        # Reservations expire more often than the tick, so that unused ones block no other pod until then.
        for _ in range(_EXPIRIES):
            await asyncio.sleep(_TICK_S / _EXPIRIES)
            ledger.reservations.expire()
        await sliced(ledger.ticking())
