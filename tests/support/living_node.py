"""A node that lives: random pods on a kubelet that runs, the exporter's own code, and a service that hears of both.

Kubelet, state files, objects and watches are those of the soak, on simulated time. Pods are bound directly, so that no
decision of the service matters. After each report without unreported pods, the service's state is compared with a
service that knows nothing but that report, and with the kubelet at the exporter's look.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec

from sandbox import simulated_time
from sandbox.apiserver import ApiServer
from sandbox.apiserver.direct import DirectApi
from sandbox.hollow import LIFETIME, Fleet, Pace, Reporting
from scheduling import Service
from soak import scenes
from topowise import nrt
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.masks import union
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.node.fold import lists
from topowise_scheduler.ledger.node.history import History
from topowise_scheduler.ledger.node.node_state import NodeState
from topowise_scheduler.ledger.watch import reflectors
from topowise_scheduler.report import Report

_PODS = "/api/v1/namespaces/default/pods"
_NAME = "n0"
_REPORTING = (
    Reporting(wait=(0.0, 0.02), lag=(0.0, 0.02)),
    Reporting(wait=(0.1, 0.5), lag=(0.0, 0.3)),
    Reporting(wait=(1.0, 10.0), lag=(0.0, 2.0)),
)


class LivingNode:
    """`play` returns what differed, as text. `counts` has how many reports were compared with what."""

    def __init__(self, seed: int, *, pods: int = 60) -> None:
        self._random = Random(seed)
        self._seed = seed
        self._pods = pods
        self._looks: dict[str, Kubelet] = {}
        self._look: Kubelet | None = None
        self.counts = Counter[str]()
        self.differences: list[str] = []

    def play(self) -> list[str]:
        """Returns a line for each report after which the service had another state."""
        put_report = NodeState.put_report

        def compared(state: NodeState, report: Report, now: float) -> Any:
            comparison = put_report(state, report, now)
            self._compare(state, report, now)
            return comparison

        with mock.patch.object(NodeState, "put_report", compared):
            simulated_time.run(self._play())
        return self.differences

    async def _play(self) -> None:
        rng = self._random
        loop = asyncio.get_running_loop()
        lag = rng.choice((0.0, 0.1, 1.0))
        server = ApiServer(window=100_000, new_uid=lambda: str(UUID(int=rng.getrandbits(128))))
        server.install_crds(scenes.CRD)
        place = next(scenes.places(rng, 1))
        api = _Writing(server, self)
        fleet = Fleet(api, pace=Pace(admission=(0.0, 0.1), start=(0.0, 2.0), stop=(0.02, 1.0)), seed=self._seed)
        node = fleet.add(_NAME, place.machine, place.config, devices=place.devices, reporting=rng.choice(_REPORTING))
        node.reporter.looked = lambda: self._note_look(node.kubelet.as_told())
        service = Service(clock=loop.time)  # type: ignore[arg-type]
        async with fleet:
            heard = DirectApi(server, "service", lag=lambda path: rng.uniform(0, lag))
            sources = reflectors(heard, service.ledger, service.records, Budgets(), service.nodes)
            tasks = [asyncio.create_task(source.run()) for source in sources]
            for number in range(self._pods):
                spec = scenes.pod(rng, f"p{number}", [place.kubelet])
                metadata = {"name": f"p{number}", "namespace": "default"}
                if rng.random() < 0.9:
                    metadata["annotations"] = {LIFETIME: f"{rng.uniform(0, 12):.3f}"}  # type: ignore[assignment]
                document = {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": metadata,
                    "spec": {**spec, "nodeName": _NAME},
                }
                await api.request("POST", _PODS, body=msgspec.json.encode(document))
                await asyncio.sleep(0 if rng.random() < 0.4 else rng.uniform(0, 3))
            await asyncio.sleep(30)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def note_object(self, version: str) -> None:
        """The exporter has written an object of this version."""
        if self._look is not None:
            self._looks[version] = self._look

    def _note_look(self, kubelet: Kubelet) -> None:
        self._look = kubelet

    def _compare(self, state: NodeState, report: Report, now: float) -> None:
        history = state.history
        self.counts["reports"] += 1
        if history.log or state.kubelet is None or report.precision != "exact" or report.unconfirmed:
            return
        self._expect(state.kubelet, _fresh(history, report, now), report, now, "a service that starts")
        look = self._looks.get(report.version)
        if look is None or report.admitting or history.finished:
            return
        right = look.fork()
        for entry in history.settled.values():
            if entry.record.status.runs:
                right.start(entry.uid)
        for ended in history.ended:
            right.remove(ended.entry.uid)
        if right.active.keys() == history.settled.keys():
            self._expect(state.kubelet, right, report, now, "the kubelet")

    def _expect(self, state: Kubelet, right: Kubelet, report: Report, now: float, what: str) -> None:
        self.counts[what] += 1
        if (has := _parts(state)) != (should := _parts(right)):
            self.differences.append(
                f"seed {self._seed} at {now:.3f}, version {report.version}: {has}, {what} has {should}"
            )


class _Writing(DirectApi):
    """The API client of kubelet and exporter."""

    def __init__(self, server: ApiServer, node: LivingNode) -> None:
        super().__init__(server, "world")
        self._living = node

    async def request(self, method: str, path: str, **how: Any) -> bytes:
        answer = await super().request(method, path, **how)
        if method != "GET" and path.startswith(nrt.PATH):
            self._living.note_object(msgspec.json.decode(answer)["metadata"]["resourceVersion"])
        return answer


def _fresh(history: History, report: Report, now: float) -> Kubelet:
    """Returns the state of a service that starts now. The pods that have ended, and that the report lists still, end
    once more."""
    state = NodeState()
    anew = History(
        report=report,
        settled=history.settled,
        finished=history.finished,
        ended=tuple(ended for ended in history.ended if lists(report, ended.entry)),
    )
    state._become(anew)
    assert state.kubelet is not None
    return state.kubelet


def _parts(node: Kubelet) -> tuple[object, ...]:
    memory, cpu = node.memory, node.cpu
    return (
        memory and (tuple(memory.tables.assignments), tuple(memory.tables.cells), memory.tables.free),
        # Where a core lacks a sibling, a kubelet may count a CPU as free that a container has. No report tells of it.
        cpu and cpu.available & ~union(union(cpus.values()) for cpus in cpu.allocations.values()),
        {name: table.names(node.devices.free(name) & table.healthy) for name, table in node.devices.tables.items()},
    )
