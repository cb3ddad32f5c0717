"""In any order of events, no pod is sent to a node whose kubelet refuses the pod.

kube-scheduler decides pod after pod and binds them in the background; some were nominated before. The kubelet takes
them in the order of their Bindings. Events of the API server and reports of the exporter arrive later. The seeds are
of courses in which a kubelet once refused a pod.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from scheduling import Service, configuration, decoded, kubelet, machine, pod, topology_of
from topowise_scheduler.ledger.pods.records import PodRecord

Json = dict[str, Any]


class Life:
    """Half a minute of a node."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.service = Service()
        self.kubelet = kubelet()
        self.refused: list[str] = []
        self.admitted = 0
        self._gone: set[str] = set()
        self._numbers = itertools.count(1)
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._last_binding = 0.0

    def run(self) -> None:
        self._report()()
        for number in range(60):
            self._in(self.random.uniform(0, 30), self._create(f"p{number}"))
        for second in range(60):
            self._in(second, self.service.ledger.tick)
        while self._due:
            at, _, happen = heapq.heappop(self._due)
            self.service.clock.now = max(at, self.service.clock.now)
            happen()

    def _in(self, seconds: float, happen: Callable[[], object]) -> None:
        heapq.heappush(self._due, (self.service.clock.now + seconds, next(self._numbers), happen))

    def _soon(self, first: float, last: float, happen: Callable[[], object]) -> None:
        self._in(self.random.uniform(first, last), happen)

    def _report(self) -> Callable[[], None]:
        """Reads the node now. Returns a function that delivers this report."""
        topology = topology_of(machine(), configuration(), self.kubelet.fork(), str(next(self._numbers)))
        return lambda: self.service.report(topology)

    def _tell(self, name: str, document: Json) -> None:
        if name not in self._gone:
            self.service.put(document)

    def _forget(self, name: str) -> None:
        self._gone.add(name)
        self.service.ledger.drop_pod(f"uid-{name}")

    def _create(self, name: str) -> Callable[[], None]:
        cpu, memory = self.random.choice("1234"), self.random.choice(("1Gi", "4Gi", "8Gi"))
        fields: Json = {"priority": self.random.choice((0, 5))}

        def shown_as(**more: Any) -> Json:
            return pod(name, cpu, memory, **fields, **more)

        def create() -> None:
            document = shown_as(**({"nominatedNodeName": "n1"} if self.random.random() < 0.25 else {}))
            record = self.service.put(document)
            self._soon(0.01, 1, lambda: self._decide(name, record, document, shown_as, tries=3))

        return create

    def _decide(self, name: str, record: PodRecord, document: Json, shown_as: Callable[..., Json], tries: int) -> None:
        if not tries:
            self._forget(name)
            return
        answers = self.service.answers
        question = answers.question(decoded(document), ["n1"])
        verdicts = answers.verdicts(question)
        if verdicts.outcomes[0] != 1:
            self._soon(0.2, 2, lambda: self._decide(name, record, document, shown_as, tries - 1))
            return
        answers.expect(question, 0, verdicts.judged_at)
        self._soon(0.001, 0.2, lambda: self._bind(name, record, document, shown_as, tries))

    def _bind(self, name: str, record: PodRecord, document: Json, shown_as: Callable[..., Json], tries: int) -> None:
        if self.service.assume(record):
            self._soon(0.2, 1, lambda: self._decide(name, record, document, shown_as, tries - 1))
            return
        now = self.service.clock.now
        self._last_binding = max(self._last_binding + 1e-4, now + self.random.uniform(0.001, 0.1))
        self._in(self._last_binding - now, lambda: self._arrive(name, document, shown_as))
        self._soon(0.01, 0.5, lambda: self._tell(name, shown_as(node="n1")))

    def _arrive(self, name: str, document: Json, shown_as: Callable[..., Json]) -> None:
        if not self.kubelet.admit(decoded(document)).admitted:
            self.refused.append(name)
            self._forget(name)
            return
        self.admitted += 1
        running = shown_as(node="n1", phase="Running", startTime="2026-01-01T00:00:00Z")
        self._soon(0.02, 0.6, lambda: self._tell(name, running))
        self._soon(0.1, 0.6, self._report())
        self._soon(0.5, 8, lambda: self._end(name))

    def _end(self, name: str) -> None:
        self.kubelet.remove(f"uid-{name}")
        self._soon(0.1, 0.6, self._report())
        self._soon(0.01, 0.15, lambda: self._forget(name))


@pytest.mark.parametrize("seed", [18, 21, 35, 44, 61])
def test_no_pod_is_sent_where_its_kubelet_refuses_it(seed: int) -> None:
    life = Life(seed)
    life.run()
    assert life.refused == []
    assert life.admitted > 10
