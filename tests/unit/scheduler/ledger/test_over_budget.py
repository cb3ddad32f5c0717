"""A node whose report is above its bounds is treated as if its object had been deleted, and no other node notices."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ledger_check import check_ledger
from scheduling import NoApi, Service, counts, exact, kubelet, pod
from topowise import nrt
from topowise.kube.reflector import Reflector
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.watch import reflectors
from topowise_scheduler.serve import metrics
from topowise_scheduler.verdicts import kube_scheduler

WHY = (
    "zones: 2001 resources in all, expected at most 1024; "
    "the report is not used; see what writes the object, or delete it"
)


class World:
    """A service with the daemon's watch of reports."""

    def __init__(self) -> None:
        self.service = Service("TightFit")
        sources = reflectors(NoApi(), self.service.ledger, self.service.records, Budgets(), self.service.nodes)
        list(sources[0]._consumer.replace([]) or ())
        self.reports: Reflector[Any] = sources[2]

    def tell(self, document: nrt.NodeResourceTopology | dict[str, Any], event: str = "MODIFIED") -> None:
        self.reports._consumer.apply(event, self.reports._decode(msgspec.json.encode(document)))  # type: ignore[arg-type]

    def node(self, name: str) -> None:
        self.service.ledger.reports.put_node(name)

    def explained(self, name: str) -> str:
        document = msgspec.convert(pod("asked", "1"), kube_scheduler.Pod)
        (shown,) = self.service.view.explanations(document, [name])
        return shown.text

    def nodes_over_budget(self) -> float | None:
        registry = metrics.registry(self.service.ledger, self.service.answers)
        return registry.get_sample_value("topowise_scheduler_over_budget_nodes")


def hostile(name: str = "n1", count: int = 2000, version: str = "2") -> dict[str, Any]:
    amounts = dict.fromkeys(("capacity", "allocatable", "available"), "1")
    resources = [{"name": resource, **amounts} for resource in ("cpu", *(f"example.com/{at}" for at in range(count)))]
    return {
        "metadata": {"name": name, "resourceVersion": version},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [{"name": "node-0", "type": "Node", "resources": resources}],
    }


@pytest.fixture
def world() -> World:
    started = World()
    for name in ("n1", "n2"):
        started.node(name)
        started.tell(exact(kubelet(), name=name))
    return started


def test_the_last_report_goes_on_as_after_a_deletion(world: World) -> None:
    deleted = World()
    for name in ("n1", "n2"):
        deleted.node(name)
        deleted.tell(exact(kubelet(), name=name))
    deleted.tell(exact(kubelet(), name="n1"), "DELETED")
    world.tell(hostile())
    for running in (deleted, world):
        running.service.put(pod("a", "4", node="n1"))
    for cpu in ("1", "3", "4", "5"):
        document = pod("b", cpu)
        assert world.service.fits(document, "n1", "n2") == deleted.service.fits(document, "n1", "n2")
    assert world.service.ledger.gates.unconfirmed.why("n1") == ("over-budget",)
    check_ledger(world.service.ledger)


def test_a_node_that_was_never_reported_stays_unreported() -> None:
    world = World()
    world.node("n1")
    world.tell(hostile())
    assert world.service.ledger.node_states.reported() == []
    assert world.service.engine.row("n1") == -1
    assert world.explained("n1").endswith(f"of its newest report nothing is used: {WHY}")
    assert world.nodes_over_budget() == 1


def test_other_nodes_are_not_affected(world: World) -> None:
    def cells() -> int:
        return sum(
            array._data.size
            for group in world.service.engine._groups.values()
            for array in (group.arrays, group.kinds.empty, group.kinds.fixed)
        )

    before, changed = cells(), world.service.ledger.node_states.changes
    for version in range(2, 12):
        world.tell(hostile(count=2000 + version, version=str(version)))
    assert cells() == before
    # The first report above the budget loses the node's report; each further report changes nothing.
    assert world.service.ledger.node_states.changes <= changed + 1


def test_the_problem_and_its_end_are_each_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for version in range(2, 8):
        world.tell(hostile(count=2000 if version == 2 else 300 + version, version=str(version)))
    said = [record.getMessage() for record in caplog.records]
    assert said.count("Report is not used") == 1
    assert world.nodes_over_budget() == 1
    assert "of its newest report nothing is used: resources: 308 names" in world.explained("n1")
    world.tell(exact(kubelet(), version="9", name="n1"))
    said = [record.getMessage() for record in caplog.records]
    assert said.count("Report is within its bounds again") == 1
    assert world.nodes_over_budget() == 0
    assert world.service.ledger.gates.unconfirmed.why("n1") == ()
    for version in range(10, 30, 2):
        world.tell(hostile(version=str(version)))
        world.tell(exact(kubelet(), version=str(version + 1), name="n1"))
    said = [record.getMessage() for record in caplog.records]
    assert said.count("Report is not used") == 1, "an object that comes and goes is no news for five minutes"


def test_nothing_of_it_stays_when_the_object_goes(world: World) -> None:
    world.tell(hostile())
    world.tell(hostile(), "DELETED")
    assert not world.service.ledger.reports.over_budget
    assert world.service.ledger.gates.unconfirmed.why("n1") == ("object-deleted",)
    world.tell(hostile())
    world.tell(hostile("gone"))
    world.service.ledger.reports.drop_node("n1")
    assert world.service.ledger.node_states.reported() == ["n2"]
    # A list without the objects.
    list(world.reports._consumer.replace([]) or ())
    assert not world.service.ledger.reports.over_budget
    assert not {"n1", "gone"} & world.service.ledger.reports._logged.keys()
    check_ledger(world.service.ledger)


def test_a_report_of_counts_is_known_by_its_numbers_once_it_is_small_again() -> None:
    world = World()
    world.node("n1")
    world.tell(hostile())
    world.tell(counts("n1", "2", version="3"))
    assert world.service.free("n1") == [2]
