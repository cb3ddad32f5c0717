"""Whatever happens in whatever order: what is booked is what pods say or are about to say, nothing goes back and forth,
and a choice from what is kept is the choice from scratch."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Final

import pytest

from examples import examples
from ledger_check import check_ledger
from nominating import TRIED, Nominating
from scheduling import counts
from topowise_scheduler.controllers.nominator.board import Board
from topowise_scheduler.controllers.nominator.deciding import Write
from topowise_scheduler.ledger.pods.pod_states import NOWHERE
from topowise_scheduler.ledger.pods.records import NOMINATED_ANNOTATION

NODES: Final = ("n1", "n2", "n3")
CORDONED: Final = {"unschedulable": True}


class Life:
    """Pods and nodes come and go, writes succeed, fail, or are never heard of, kube-scheduler does as it likes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.made = Nominating("8", "8", "8", ahead=6)
        self.count = 0
        self.writes: dict[str, list[str]] = {}
        self.on_the_way: list[Write] = []

    def step(self) -> None:
        self.random.choice(
            [self.create, self.create, self.decide, self.decide, self.land, self.land, self.lose, self.take, self.clear,
             self.preempt, self.delete, self.cordon, self.report, self.wait, self.repeat]
        )()  # fmt: skip
        check_ledger(self.made.ledger)

    def pod(self, *, bound: bool = False) -> str:
        names = [name for name, one in self.made.pods.items() if bool(one.get("node")) is bound]
        return self.random.choice(names) if names else ""

    def create(self) -> None:
        self.count += 1
        self.made.put(f"p{self.count}", self.random.choice("1234"), priority=self.random.choice((0, 0, 0, 5)))

    def decide(self) -> None:
        write = self.made.decisions.next()
        if write is not None:
            self.on_the_way.append(write)

    def land(self) -> None:
        """A write reaches the API server."""
        if self.on_the_way:
            write = self.on_the_way.pop(self.random.randrange(len(self.on_the_way)))
            if self.made.apply(write):
                self.writes.setdefault(write.record.name, []).append(write.node)

    def lose(self) -> None:
        if self.on_the_way:
            self.on_the_way.pop()

    def take(self) -> None:
        """kube-scheduler takes a pod, and binds it where it was nominated or elsewhere."""
        if name := self.pod():
            record = self.made.event(name)
            self.made.ledger.remember(record)
            assert record.needs is not None
            node = record.status.nominated or self.random.choice(NODES)
            if self.made.ledger.reservations.assume(record, record.needs, node) is None:
                self.made.bind(name, node)

    def clear(self) -> None:
        if name := self.pod():
            self.made.put(name, nominatedNodeName="", conditions=TRIED)

    def preempt(self) -> None:
        if name := self.pod():
            self.made.put(name, nominatedNodeName=self.random.choice(NODES), conditions=TRIED)

    def delete(self) -> None:
        if name := self.pod(bound=self.random.random() < 0.7):
            self.made.delete(name)

    def cordon(self) -> None:
        self.made.node(self.random.choice(NODES), self.random.choice((CORDONED, None)))

    def report(self) -> None:
        self.made.service.report(
            counts(self.random.choice(NODES), self.random.choice("0588"), included=(), version=str(self.count))
        )

    def wait(self) -> None:
        self.made.clock.now += self.random.choice((0.1, 1.0, 20.0))
        self.made.ledger.tick()

    def repeat(self) -> None:
        """The watch lists a pod again that has not changed."""
        if name := self.pod():
            self.made.event(name)


@pytest.mark.parametrize("seed", range(examples(3)))
def test_what_is_booked_is_what_pods_say(seed: int) -> None:
    life = Life(seed)
    made = life.made
    for _ in range(120):
        life.step()
        assert len(made.ledger.nominations) <= 6 + sum(
            one.get("annotations", {}).get(NOMINATED_ANNOTATION) == one.get("nominatedNodeName", "")
            for one in made.pods.values()
        )
    # All that is on its way is lost; then nobody is booked anywhere that its pod does not say.
    made.clock.now += 20
    made.ledger.tick()
    said = {name: one["nominatedNodeName"] for name, one in made.pods.items() if one.get("nominatedNodeName")}
    booked = made.nominated()
    withdrawn = {write.record.name for write in life.on_the_way if not write.node}
    assert booked.items() <= said.items()
    # What was withdrawn or moved and lost is still said by the pod: its next event brings it back.
    for name in said.keys() - booked.keys() - withdrawn:
        if not made.pods[name].get("node"):
            made.event(name)
    assert {name for name in said if not made.pods[name].get("node")} - withdrawn <= made.nominated().keys()


@pytest.mark.parametrize("seed", range(examples(3)))
def test_no_pod_is_nominated_more_than_a_few_times(seed: int) -> None:
    life = Life(seed)
    for _ in range(200):
        life.step()
    for name, nodes in life.writes.items():
        moves = sum(bool(before and after) and before != after for before, after in pairwise(nodes))
        assert moves <= 2, f"{name}: {nodes}"


@pytest.mark.parametrize("seed", range(examples(3)))
def test_what_is_kept_is_what_would_be_found_from_scratch(seed: int) -> None:
    life = Life(seed)
    made = life.made
    record = made.put("kind", "2", priority=3)
    assert record.constraints is not None
    cluster = made.decisions._cluster
    kept = Board(cluster, record, record.constraints)
    for _ in range(80):
        life.step()
        fresh = Board(cluster, record, record.constraints)
        kept.refresh()
        fresh.refresh()
        assert kept._levels.tolist() == fresh._levels.tolist()


def test_room_is_empty_again_in_the_end() -> None:
    for seed in range(examples(3)):
        life = Life(seed)
        for _ in range(100):
            life.step()
        for name in list(life.made.pods):
            life.made.delete(name)
        life.made.ledger.tick()
        assert all(life.made.ledger.pods.of(f"uid-p{number}") == NOWHERE for number in range(life.count + 1))
        assert not len(life.made.ledger.nominations)
        assert not len(life.made.ledger.queue)
