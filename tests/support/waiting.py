"""Decisions on simulated time: a full cluster whose events reach the service with random delays.

Each node's kubelet is the kubelet model. Its actions reach the ledger as through the API: events of pods, reports, and
ends of pods that the kubelet knows first. The simulation counts three kinds of wrong answers: a kubelet refuses a pod
after a positive answer; a negative answer although a node would admit the pod after all pods on their way; and a
placement that the ledger holds for certain before a report, but that is wrong.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import msgspec
import numpy as np

from scheduling import Service, exact, kubelet
from scheduling import pod as manifest
from topowise import pods
from topowise_scheduler.ledger.node.pod_parts import position_of
from topowise_scheduler.ledger.pods.booking_state import BookingState
from topowise_scheduler.ledger.pods.records import PodRecord

_RETRY_S = 0.15
# The first of the queue are tried.
_TRIED = 3
_HORIZON_S = 75.0


class _Pod(msgspec.Struct):
    document: dict[str, Any]
    lifetime: float

    @property
    def uid(self) -> str:
        return str(self.document["metadata"]["uid"])

    def on(self, node: str, **fields: Any) -> dict[str, Any]:
        """Returns the pod as bound to a node."""
        return {
            **self.document,
            "spec": {**self.document["spec"], "nodeName": node},
            "status": {**self.document["status"], **fields},
        }


class Simulation:
    """`run` plays 75 seconds. `foreign` is the share of pods that another scheduler binds. Reports of `late` exporters
    are up to 30 seconds late."""

    def __init__(self, seed: int, *, nodes: int = 3, pods: int = 150, foreign: float = 0.0, late: bool = False) -> None:
        self._late: set[str] | None = set() if late else None
        self._random = Random(seed)
        self.service = Service("TightFit")
        self.service.clock.now = 0.0
        self._names = [f"n{number}" for number in range(nodes)]
        self._truth = {name: kubelet() for name in self._names}
        self._coming: dict[str, list[_Pod]] = {name: [] for name in self._names}
        self._busy_until = dict.fromkeys(self._names, 0.0)
        self._versions = count(1)
        self._foreign = foreign
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = count()
        self._waiting: list[_Pod] = []
        self._pods = [self._make(number) for number in range(pods)]
        self.decisions = self.refused = self.foreign_refused = self.wrongly_waiting = self.left = 0
        self.misplaced: set[str] = set()

    def run(self) -> None:
        """Plays to the end."""
        service = self.service
        for name in self._names:
            service.report(exact(self._truth[name], str(next(self._versions)), name))
        for number, pod in enumerate(self._pods):
            self._later(0.2 * number, lambda pod=pod: self._waiting.append(pod))
        self._later(0.0, self._try_all)
        self._later(1.0, self._tick)
        while self._events and service.clock.now < _HORIZON_S:
            at, _, action = heapq.heappop(self._events)
            service.clock.now = max(service.clock.now, at)
            action()
        self.left = len(self._waiting)

    # What happens

    def _make(self, number: int) -> _Pod:
        cpus, gib = self._random.choice((1, 1, 2, 2, 3, 4)), self._random.choice((1, 1, 2, 6))
        return _Pod(manifest(f"p{number}", str(cpus), f"{gib}Gi"), self._random.uniform(1, 12))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.service.clock.now + seconds, next(self._sequence), action))

    def _between(self, least: float, most: float) -> float:
        return self._random.uniform(least, most)

    def _tick(self) -> None:
        self.service.ledger.tick()
        self._later(1.0, self._tick)

    def _try_all(self) -> None:
        for pod in self._waiting[:_TRIED]:
            if self._random.random() < self._foreign:
                name = self._random.choice(self._names)
                self._waiting.remove(pod)
                self._later(0.0, lambda pod=pod, name=name: self._bound(pod, name, is_ours=False))
            else:
                self._try(pod)
        self._later(_RETRY_S, self._try_all)

    def _try(self, pod: _Pod) -> None:
        for name in self._names:
            self._look_for_misplaced(name)
        answers = self.service.answers
        question = answers.question(pods.decode(msgspec.json.encode(pod.document)), self._names)
        self.decisions += 1
        fits = answers.verdicts(question).outcomes == 1
        if not fits.any():
            self.wrongly_waiting += any(self._would_take(name, pod) for name in self._names)
            return
        at = int(np.argmax(np.where(fits, answers.scores(question), -1)))
        answers.expect(question, at)
        self._waiting.remove(pod)
        self._later(self._between(0.0, 0.1), lambda: self._bind(pod, question.record, self._names[at]))

    def _look_for_misplaced(self, name: str) -> None:
        node_state, truth = self.service.ledger.node_states.of(name), self._truth[name]
        assert node_state is not None
        assert node_state.kubelet is not None
        uncertain = {view.uid for view in node_state.uncertain(self.service.clock.now)}
        for booking in node_state.history.entries():
            uid = booking.uid
            if booking.state is not BookingState.ASSIGNED or node_state.is_reported(uid) or uid in uncertain:
                continue
            if {uid} <= truth.active.keys() & node_state.kubelet.active.keys():
                predicted = position_of(node_state.kubelet, node_state.kubelet.placements(uid))
                self.misplaced |= {uid} if position_of(truth, truth.placements(uid)) != predicted else set()

    def _would_take(self, name: str, pod: _Pod) -> bool:
        node = self._truth[name].fork()
        expected = [booking.record.uid for booking in self._bookings(name) if booking.record.uid not in node.active]
        for uid in expected:
            reserved = next(each for each in self._pods if each.uid == uid)
            node.admit(pods.decode(msgspec.json.encode(reserved.document)))
        return node.admit(pods.decode(msgspec.json.encode(pod.document))).admitted

    def _bookings(self, name: str) -> list[Any]:
        node_state = self.service.ledger.node_states.of(name)
        assert node_state is not None
        return list(node_state.history.entries())

    def _bind(self, pod: _Pod, record: PodRecord, name: str) -> None:
        assert record.needs is not None
        if self.service.ledger.reservations.assume(record, record.needs, name):
            self._waiting.append(pod)
            return
        self._bound(pod, name, is_ours=True)

    def _bound(self, pod: _Pod, name: str, *, is_ours: bool) -> None:
        self._later(self._between(0.0, 0.03), lambda: self.service.put(pod.on(name)) and None)
        # The kubelet admits pods serially, in the order of the API server.
        start = max(self._busy_until[name], self.service.clock.now + 0.02)
        self._busy_until[name] = start + self._between(0.005, 0.15)
        self._later(self._busy_until[name] - self.service.clock.now, lambda: self._admit(pod, name, is_ours=is_ours))

    def _admit(self, pod: _Pod, name: str, *, is_ours: bool) -> None:
        if not self._truth[name].admit(pods.decode(msgspec.json.encode(pod.document))).admitted:
            self.refused += is_ours
            self.foreign_refused += not is_ours
            failed = pod.on(name, phase="Failed", reason="TopologyAffinityError")
            self._later(self._between(0.04, 0.3), lambda: self.service.put(failed) and None)
            return
        runs = pod.on(name, phase="Running", startTime="2026-01-01T00:00:00Z")
        self._later(self._between(0.04, 0.3), lambda: self.service.put(runs) and None)
        self._later(self._between(0.01, 0.3), lambda: self._report(name))
        self._later(pod.lifetime, lambda: self._end(pod, name))

    def _end(self, pod: _Pod, name: str) -> None:
        self._truth[name].remove(pod.uid)
        self._later(self._between(0.35, 1.5), lambda: self.service.ledger.drop_pod(pod.uid))
        self._later(self._between(0.1, 1.0), lambda: self._report(name))

    def _report(self, name: str) -> None:
        if self._late is None:
            self._report_now(name)
        elif name not in self._late:
            self._late.add(name)
            self._later(self._between(25.0, 30.0), lambda: self._report_now(name))

    def _report_now(self, name: str) -> None:
        if self._late is not None:
            self._late.discard(name)
        report = exact(self._truth[name], str(next(self._versions)), name)
        self._later(0.05, lambda: self.service.report(report))
