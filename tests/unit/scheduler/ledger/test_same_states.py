"""Nodes with the same number admit the same pods, and rows that are shared by nodes are correct."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Final

import msgspec
import pytest

from examples import examples
from ledger_check import check_ledger
from scheduling import Service, exact, kubelet, pod
from topowise_scheduler.ledger.gates.capacity import CapacityGate
from topowise_scheduler.ledger.pods.records import PodRecord

NODES: Final = ("n1", "n2", "n3", "n4")
CPUS: Final = ("1", "2", "3", "4")
MEMORY: Final = ("1Gi", "6Gi", "14Gi")


class Life:
    """Pods are placed by us, reserved, bound and deleted on nodes that are alike at first."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.service = Service("TightFit", places=True)
        for name in NODES:
            self.service.report(exact(kubelet(), name=name))
        self.records: list[PodRecord] = []
        self.samples = [self.record("sample", cpu, memory) for cpu in CPUS for memory in MEMORY]

    def record(self, name: str, cpu: str, memory: str, node: str = "") -> PodRecord:
        return self.service.records.decode(msgspec.json.encode(pod(name, cpu, memory, node=node)))

    def step(self) -> None:
        self.random.choice([self.place, self.place, self.place, self.assume, self.reserve, self.end])()
        check_ledger(self.service.ledger)

    def place(self) -> None:
        record = self.record(f"p{len(self.records)}", self.random.choice(CPUS), self.random.choice(MEMORY))
        self.records.append(record)
        self.service.ledger.place(record, self.random.choice(NODES))

    def assume(self) -> None:
        if self.records:
            record = self.random.choice(self.records)
            assert record.needs is not None
            self.service.ledger.reservations.assume(record, record.needs, self.random.choice(NODES))

    def reserve(self) -> None:
        if self.records:
            record = self.random.choice(self.records)
            assert record.needs is not None
            self.service.ledger.reservations.put(record, record.needs, self.random.choice(NODES))

    def end(self) -> None:
        if self.records:
            self.service.ledger.drop_pod(self.random.choice(self.records).uid)

    def by_the_model(self, record: PodRecord, name: str) -> bool:
        states = self.service.ledger.node_states.states(name, ())
        return all(state.admit_view(record.view(state)).admitted for state in states)


@pytest.mark.parametrize("seed", range(examples(2)))
def test_whatever_comes_rows_of_a_node_are_what_it_may_be(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the exact states, which have no rows."""
    monkeypatch.setattr(CapacityGate, "_try_uncertain", lambda *_: None)
    life = Life(seed)
    answers = life.service.answers
    for at in range(40):
        life.step()
        for record in life.random.sample(life.samples, 3):
            expected = [life.by_the_model(record, name) for name in NODES]
            # Each node alone, then all nodes: late rows are made in both cases.
            names = NODES if at % 2 else ()
            assert [bool(answers.fits(record, [name])[0]) for name in names] == expected[: len(names)]
            assert answers.fits(record, NODES).tolist() == expected


@pytest.mark.parametrize("seed", range(examples(2)))
def test_nodes_of_one_number_take_and_score_pods_alike(seed: int) -> None:
    life = Life(seed)
    equal = 0
    for _ in range(40):
        life.step()
        numbers = {name: life.service.ledger.node_states.number(name) for name in NODES}
        for left, right in combinations(NODES, 2):
            if numbers[left] == numbers[right]:
                equal += 1
                for record in life.samples:
                    _, left_levels = life.service.answers.levels(record, [left])
                    _, right_levels = life.service.answers.levels(record, [right])
                    assert left_levels.tolist() == right_levels.tolist()
    assert equal > 3


def test_the_same_pods_in_the_same_order_make_the_same_state() -> None:
    life = Life(0)
    ledger = life.service.ledger
    assert ledger.node_states.number("n1") == ledger.node_states.number("n2") > 0
    for name in ("n1", "n2"):
        for number, cpu in enumerate("12"):
            ledger.place(life.record(f"{name}-{number}", cpu, "1Gi"), name)
    assert ledger.node_states.number("n1") == ledger.node_states.number("n2")
    ledger.place(life.record("more", "1", "1Gi"), "n1")
    assert ledger.node_states.number("n1") != ledger.node_states.number("n2")
    assert ledger.node_states.number("unknown") == 0
