"""Reservations of pods that do not exist expire soon; pods that a late watch delivers keep their reservations."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from ledger_check import check_ledger
from scheduling import Service, counts, decoded, pod
from topowise_scheduler.ledger.pods import unverified_pods
from topowise_scheduler.ledger.pods.unverified_pods import UNVERIFIED_S
from topowise_scheduler.serve.volcano.allocations import Allocations
from topowise_scheduler.verdicts.engine import Outcome


class Attacked(Service):
    """A node with two zones of eight CPUs, and the clients that ask about it."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__("TightFit")
        self.names = [f"n{number}" for number in range(nodes)]
        for name in self.names:
            self.report(counts(name, ("8", "8"), included=()))

    def ask(self, document: dict[str, Any], *names: str) -> list[str]:
        """filter and prioritize, as kube-scheduler does it; the nodes that are left."""
        question = self.answers.question(decoded(document), list(names) or self.names)
        verdicts = self.answers.verdicts(question)
        left = [name for at, name in enumerate(question.names) if verdicts.outcomes[at] == Outcome.FITS]
        if left:
            self.answers.expect(question, question.names.index(left[0]), verdicts.judged_at)
        return left

    def wait(self, seconds: float) -> None:
        """Time passes, and the ledger ticks every second as in the daemon."""
        for _ in range(int(seconds)):
            self.clock.now += 1
            self.ledger.tick()
            check_ledger(self.ledger)


@pytest.fixture
def service() -> Attacked:
    return Attacked()


def test_invented_pods_block_a_real_pod_for_seconds_and_then_never_again(service: Attacked) -> None:
    for number in (1, 2):
        assert service.ask(pod(f"made-up-{number}", "8"))
    service.put(pod("real", "8"))
    assert service.ask(pod("real", "8")) == []
    service.wait(UNVERIFIED_S)
    assert service.ask(pod("real", "8")) == ["n0"]
    service.ledger.reservations.release("uid-real")
    # Any invented pod from now on, and however often.
    for number in range(3, 200):
        service.ask(pod(f"made-up-{number}", "8"))
        assert len(service.ledger.reservations) == 0
        assert service.ask(pod("real", "8")) == ["n0"]
        service.ledger.reservations.release("uid-real")
        service.wait(1)


def test_asking_again_does_not_prolong_it(service: Attacked) -> None:
    for _ in range(int(UNVERIFIED_S)):
        service.ask(pod("made-up", "8"))
        service.wait(1)
    assert len(service.ledger.reservations) == 0


def test_a_pod_that_the_watch_has_passed_is_unverified_at_once(service: Attacked) -> None:
    service.put(pod("seen", "1", resourceVersion="100"))
    service.ask(pod("made-up", "8", resourceVersion="99"))
    assert len(service.ledger.reservations) == 0
    service.ask(pod("newer", "8", resourceVersion="101"))
    assert len(service.ledger.reservations) == 1
    service.put(pod("seen", "1", resourceVersion="102"))
    service.wait(1)
    assert len(service.ledger.reservations) == 0


def test_a_burst_that_a_late_watch_brings_keeps_its_bookings() -> None:
    service, versions = Attacked(nodes=20), count(1000)
    burst = [pod(f"p{number}", "3", resourceVersion=str(next(versions))) for number in range(60)]
    for document in burst:
        assert service.ask(document)
    booked = len(service.ledger.reservations)
    assert booked == 60
    service.wait(UNVERIFIED_S - 2)
    for document in burst:
        service.put(document)
    service.wait(UNVERIFIED_S)
    assert len(service.ledger.reservations) == booked
    # For as long as ever.
    service.wait(30)
    assert len(service.ledger.reservations) == 0


def test_trust_comes_back_with_pods_that_are_brought(service: Attacked) -> None:
    service.ask(pod("made-up", "1"))
    service.wait(UNVERIFIED_S)
    for number, booked in enumerate((0, 1, 1, 1)):
        service.ask(pod(f"real-{number}", "1"))
        assert len(service.ledger.reservations) == booked
        service.put(pod(f"real-{number}", "1"))
        service.ledger.reservations.release(f"uid-real-{number}")


def test_unverified_pods_are_bounded_however_many_are_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unverified_pods, "MAX_UNVERIFIED_PODS", 128)
    service = Attacked(nodes=16)
    for number in range(256):
        service.ask(pod(f"made-up-{number}", "1m", "1Mi"), service.names[number % len(service.names)])
    assert 0 < len(service.ledger.reservations) <= 128
    assert len(service.ledger.reservations.unverified_pods) <= 128
    service.wait(UNVERIFIED_S)
    assert len(service.ledger.reservations) == 0
    assert len(service.ledger.reservations.unverified_pods) == 0


def test_a_deleted_pod_is_unverified_too(service: Attacked) -> None:
    service.put(pod("real", "8", resourceVersion="7"))
    service.ledger.drop_pod("uid-real")
    service.ask(pod("real", "8", resourceVersion="7"))
    assert len(service.ledger.reservations) == 0


def test_a_pod_on_a_node_does_not_stay_among_the_assumed_pods(service: Attacked) -> None:
    service.put(pod("a", "1"))
    service.put(pod("a", "1", node="n0"))
    assert service.ledger.reservations.unverified_pods._pending == set()


def test_volcanos_allocations_of_unverified_pods_are_bounded_the_same_way(service: Attacked) -> None:
    allocations = Allocations(service.ledger, service.clock)

    def allocate(name: str) -> str:
        record = service.records.record(decoded(pod(name, "8")))
        return allocations.allocate(record, "n0", is_pipelined=False)

    assert allocate("made-up") == ""
    service.wait(UNVERIFIED_S)
    assert len(service.ledger.reservations) == 0
    assert "no watch has brought the pod" in allocate("made-up-2")
    service.put(pod("real", "8"))
    assert allocate("real") == ""
