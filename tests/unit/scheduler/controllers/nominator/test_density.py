"""Nodes are filled as densely as by kube-scheduler's questions: it is the same strategy, asked beforehand."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest

from nominating import NAME
from scheduling import Service, exact, kubelet, pod
from topowise_scheduler.controllers.nominator import Cluster, Decisions, Requested
from topowise_scheduler.ledger.pods.records import PodRecord

NODES: Final = tuple(f"n{number}" for number in range(8))
_ENOUGH: Final = 60
Choose = Callable[[PodRecord], str]


class Filling:
    """Kubelets that admit what comes to them, and report it at once."""

    def __init__(self) -> None:
        self.service = Service("TightFit", nominates=[NAME])
        self.kubelets = {name: kubelet() for name in NODES}
        for name in NODES:
            self.service.put_node(name)
            self.service.ledger.reports.put_node(name)
        self._version = 0
        self.report(*NODES)

    def report(self, *names: str) -> None:
        for name in names:
            self._version += 1
            self.service.report(exact(self.kubelets[name], version=str(self._version), name=name))

    def placed(self, seed: int, choose: Choose) -> int:
        """How many of the same pods found a node."""
        random, count = Random(seed), 0
        for number in range(_ENOUGH):
            amounts = random.choice((("1", "2Gi"), ("2", "3Gi"), ("3", "10Gi"), ("4", "6Gi")))
            document: dict[str, Any] = pod(f"p{number}", *amounts, schedulerName=NAME)
            record = self.service.put(document)
            name = choose(record)
            if not name:
                self.service.ledger.drop_pod(record.uid)
                continue
            bound = self.service.put({**document, "spec": {**document["spec"], "nodeName": name}})
            assert self.kubelets[name].admit_view(bound.view(self.kubelets[name])).admitted
            self.report(name)
            count += 1
        return count


def by_scores(filling: Filling) -> Choose:
    def choose(record: PodRecord) -> str:
        answers = filling.service.answers
        fitting = [name for name, fits in zip(NODES, answers.fits(record, NODES), strict=True) if fits]
        if not fitting:
            return ""
        scores = answers.scores(answers.about(record, fitting))
        return fitting[int(scores.argmax())]

    return choose


def by_nominations(filling: Filling) -> Choose:
    service = filling.service
    cluster = Cluster(service.ledger, service.answers, service.nodes, Requested(service.ledger))
    decisions = Decisions(cluster, service.clock, needs_burst=False, ahead=10)

    def choose(record: PodRecord) -> str:
        write = decisions.next()
        assert write is None or write.record is record
        return "" if write is None else write.node

    return choose


@pytest.mark.parametrize("seed", range(6))
def test_as_many_find_a_node(seed: int) -> None:
    one, other = Filling(), Filling()
    asked, nominated = one.placed(seed, by_scores(one)), other.placed(seed, by_nominations(other))
    assert 20 < asked < _ENOUGH
    assert nominated >= asked - 1
