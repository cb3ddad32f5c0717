"""A node that writes all the time: its newest report waits for the next tick, and no other node's does.

The tests set the cost of a report, so they do not depend on the speed of the machine.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from scheduling import Clock, NoApi, Service, counts
from topowise.kube.reflector import Reflector
from topowise_scheduler import report
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.late_reports import SHARE, LateReports
from topowise_scheduler.ledger.watch import reflectors


class Costs:
    """A service whose watch of reports needs `cost` seconds of CPU for each report."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
        self.cost, self.used, self.read = cost, 0.0, list[str]()
        self.service = Service()
        self.service.ledger.late_reports = LateReports(self.service.clock, lambda: self.used)
        read_bytes = report.read_bytes

        def costly(raw: bytes, known: Any) -> report.Report:
            decoded = read_bytes(raw, known)
            self.used += self.cost
            self.read.append(f"{decoded.name} {decoded.version}")
            return decoded

        monkeypatch.setattr(report, "read_bytes", costly)
        service = self.service
        sources = reflectors(NoApi(), service.ledger, service.records, Budgets(), service.nodes)
        list(sources[0]._consumer.replace([]) or ())
        self.reports: Reflector[Any] = sources[2]

    def tell(self, name: str, free: int, version: int, event: str = "MODIFIED") -> None:
        document = msgspec.json.encode(counts(name, str(free), version=str(version)))
        self.reports._consumer.apply(event, self.reports._decode(document))  # type: ignore[arg-type]


def test_the_newest_report_of_a_noisy_node_is_taken_at_the_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(monkeypatch, 0.05)
    for version in range(1, 21):
        costs.tell("noisy", version % 8, version)
    assert costs.read[-1] == "noisy 5", "the burst that a node may have, then none"
    assert costs.service.free("noisy") == [5]
    costs.tell("quiet", 7, 30)
    assert costs.service.free("quiet") == [7]
    costs.service.ledger.tick()
    assert costs.read[-2:] == ["quiet 30", "noisy 20"]
    assert costs.service.free("noisy") == [20 % 8]
    costs.service.ledger.tick()
    assert costs.read[-1] == "noisy 20"


def test_a_node_within_its_share_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(monkeypatch, 0.009)
    for version in range(1, 400):
        costs.tell("n1", version % 8, version)
        assert costs.service.free("n1") == [version % 8]
        costs.service.clock.now += 0.1
    assert len(costs.service.ledger.late_reports) == 0


def test_a_node_that_is_quiet_again_is_no_longer_noisy_and_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(monkeypatch, 0.3)
    costs.tell("n1", 1, 1)
    costs.tell("n1", 2, 2)
    assert costs.service.free("n1") == [1]
    costs.service.clock.now += 0.3 / SHARE + 1
    costs.tell("n1", 3, 3)
    assert costs.service.free("n1") == [3]
    # The report that waited is older.
    costs.service.ledger.tick()
    assert costs.service.free("n1") == [3]
    costs.service.clock.now += 0.3 / SHARE + 1
    costs.service.ledger.tick()
    late = costs.service.ledger.late_reports
    assert (len(late), len(late._owed), len(late._waiting)) == (0, 0, 0)


def test_a_report_that_waits_does_not_outlive_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_listed in (False, True):
        costs = Costs(monkeypatch, 0.3)
        costs.tell("n1", 1, 1)
        costs.tell("n1", 2, 2)
        if is_listed:
            list(costs.reports._consumer.replace([]) or ())
        else:
            costs.tell("n1", 2, 3, "DELETED")
        costs.service.ledger.tick()
        assert costs.service.ledger.node_states.reported() == []


def test_a_list_that_a_noisy_node_is_in_ends_with_its_newest_report(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(monkeypatch, 0.3)
    costs.tell("n1", 1, 1)
    document = msgspec.json.encode(counts("n1", "5", version="9"))
    list(costs.reports._consumer.replace([costs.reports._decode(document)]) or ())
    assert costs.service.free("n1") == [1]
    costs.service.ledger.tick()
    assert costs.service.free("n1") == [5]


def test_all_noisy_nodes_have_one_share_and_each_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each tick begins at a random node: with other seeds a node has no turn in a minute in 3 of 1,000 runs.
    monkeypatch.setattr("topowise.runtime.event_loop.random", Random(0))
    clock, used, taken = Clock(), 0.0, list[str]()
    late = LateReports(clock, lambda: used)

    def take(name: str) -> None:
        nonlocal used
        with late.charged(lambda: name):
            used += 0.04
            clock.now += 0.04
        taken.append(name)

    names = [f"n{number}" for number in range(20)]
    for name in names:
        for _ in range(6):
            take(name)
    assert len(late) == 20
    began, before, times = clock.now, used, 0
    taken.clear()
    while clock.now - began < 60:
        for name in names:
            # A node that has not had its turn for long has paid, and may report at once again.
            if late.waits(name):
                late.put(name, lambda name=name: take(name))
        for _ in late.taking():
            pass
        clock.now += 1
        times += 1
    assert used - before <= times * (SHARE + 0.04)
    assert set(taken) == set(names)


def test_an_unreadable_report_that_waits_blocks_no_other_report(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    costs = Costs(monkeypatch, 0.3)
    for name in ("n1", "n2"):
        costs.tell(name, 1, 1)
    broken = b'{"metadata":{"name":"n1","resourceVersion":"2"},"zones":[{"name":"node-0","type":"Node","resources":7}]}'
    costs.reports._consumer.apply("MODIFIED", costs.reports._decode(broken))
    costs.tell("n2", 2, 2)
    costs.service.ledger.tick()
    assert (costs.service.free("n1"), costs.service.free("n2")) == ([1], [2])
    assert "cannot be applied" in caplog.text
