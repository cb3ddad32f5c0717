"""Leader election, and the controllers that the leader runs."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

from topowise.kube.credentials import needed_namespace
from topowise.kube.lease import Elector
from topowise.runtime import clock
from topowise.runtime.tasks import unending
from topowise_scheduler.controllers.admission_checks import AdmissionChecks
from topowise_scheduler.controllers.alignment import AlignmentPreemption
from topowise_scheduler.controllers.placement import Decisions, Placer
from topowise_scheduler.controllers.preemptor import Preemptor
from topowise_scheduler.controllers.refused_pods import RefusedPods
from topowise_scheduler.controllers.requeue import Requeuer
from topowise_scheduler.controllers.scale_down_guard import ScaleDownGuard
from topowise_scheduler.controllers.scale_up import ScaleUp
from topowise_scheduler.controllers.scale_up_demand import Demand
from topowise_scheduler.controllers.startup_taint import StartupTaint
from topowise_scheduler.controllers.unused_claims import UnusedClaims
from topowise_scheduler.controllers.unused_reports import UnusedReports
from topowise_scheduler.controllers.waiting_pods import WaitingPods
from topowise_scheduler.controllers.workload_pods import WorkloadPods
from topowise_scheduler.overlay.fit_together import FitTogetherService
from topowise_scheduler.serve.core import Core

Work = Callable[[], Coroutine[Any, Any, None]]

# Pods for which admission checks may reserve at the same time; further checks are Retry. Reservations for more pods
# would hide much of a cluster from kube-scheduler.
_MOST_RESERVED: Final = 1000
# Not the name of kube-scheduler's Lease: both may be in the same pod and namespace.
_LEASE: Final = "topowise-scheduler-requeue"


class Leader:
    """Runs the controllers while this replica is the leader."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._elector: Elector | None = None
        settings = core.settings
        self._workload_pods = WorkloadPods()
        self.admission_checks = self._admission_checks() if settings.kueue.enabled else None
        """Also reserves while another replica is the leader."""
        # Created once, so that recent evictions and pending requeues of a controller outlast a lost lease.
        self._controllers = self._enabled_controllers()

    def _admission_checks(self) -> AdmissionChecks:
        core = self._core
        fitting = FitTogetherService(core.trial, most_reserved=_MOST_RESERVED, limit="reserved for admission checks")
        return AdmissionChecks(
            core.api.fenced(self._may_write),
            core.view,
            fitting,
            nodes=self._workload_pods if core.settings.scale_up.enabled else None,
            is_leader=self._may_write,
            not_ready=core.not_synced,
        )

    async def run(self) -> None:
        """Runs until cancelled. Without an election this replica is always the leader."""
        settings, work = self._core.settings.leader_election, self._run_controllers
        if not settings.enabled:
            await work()
            return
        namespace = needed_namespace("leaderElection")
        # Two processes may have the same host name, as on the host network.
        identity = f"{socket.gethostname()}_{secrets.token_hex(4)}"
        self._elector = Elector(self._core.api, namespace, _LEASE, identity)
        await self._elector.run(work)

    def _may_write(self) -> bool:
        """Returns whether the replica is the leader now, by the clock."""
        if self._elector is None:
            return not self._core.settings.leader_election.enabled
        return self._elector.is_leader

    def _undecided(self) -> str | None:
        """Returns what has to be known before a placeholder may be ended, None if it is known."""
        checks = self.admission_checks
        return self._core.not_synced() or (None if checks is None else checks.undecided())

    async def _run_controllers(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name, work in self._controllers.items():
                group.create_task(unending(name, work()), name=name)
            # A leader without controllers keeps the lease.
            await asyncio.Event().wait()

    def _enabled_controllers(self) -> dict[str, Work]:
        core, settings = self._core, self._core.settings
        api, ledger, answers = core.api.fenced(self._may_write), core.ledger, core.answers
        alignment = AlignmentPreemption(core.trial, core.budgets)
        requeuer = Requeuer(api, ledger, answers.fits, prepare=answers.fitting)

        def place() -> Coroutine[Any, Any, None]:
            # A new placer for each term: writes that were under way when the lease was lost are dropped.
            decisions = Decisions(core.trial, clock.monotonic, form=settings.placement.form)
            return Placer(
                api,
                ledger,
                decisions,
                settles=settings.leader_election.enabled,
                prebinds=core.options.before_gates(api),
                not_ready=core.not_synced,
            ).run()

        def scale_up() -> Coroutine[Any, Any, None]:
            chosen = settings.scale_up
            demand = Demand(api, core.view)
            return ScaleUp(
                api,
                core.trial,
                demand,
                chosen,
                namespace=chosen.namespace or needed_namespace("scaleUp.namespace"),
                workloads=self._workload_pods,
                declared=core.node_groups,
                not_ready=self._undecided,
            ).run()

        def unused_claims() -> Coroutine[Any, Any, None]:
            assert core.options.claims is not None
            return UnusedClaims(api, ledger, core.options.claims).run()

        guard = ScaleDownGuard(api, core.trial, not_ready=core.not_synced)
        controllers: dict[str, tuple[bool, Work]] = {
            "requeue": (settings.requeue.enabled, requeuer.run),
            "waiting pods": (settings.waiting_pods.tell, WaitingPods(api, ledger, core.view).run),
            "placement": (settings.placement.enabled, place),
            "unused claims": (bool(settings.resource_claims.drivers), unused_claims),
            "unused reports": (True, UnusedReports(api, ledger).run),
            "start-up taint": (settings.startup_taint.enabled, StartupTaint(api, ledger, core.nodes).run),
            "refused pods": (settings.refused_pods.delete, RefusedPods(api, ledger).run),
            "preemptor": (settings.preemptor.enabled, Preemptor(api, ledger, alignment, settings.preemptor).run),
            "scale-down guard": (settings.scale_down_guard.enabled, guard.run),
            "scale up": (settings.scale_up.enabled, scale_up),
        }
        return {name: work for name, (is_enabled, work) in controllers.items() if is_enabled}
