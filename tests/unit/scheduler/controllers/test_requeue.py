"""Which pods are requeued, when, and how often."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sandbox.exported import exported
from scheduling import WAITS, Service, configuration, counts, full, kubelet, machine, pod
from topowise.kube.api import Api
from topowise_scheduler.controllers.requeue import Requeuer
from topowise_scheduler.ledger.pods.records import PodRecord


@pytest.fixture
def service() -> Service:
    return full()


def requeuer(service: Service, per_second: float = 1000.0) -> Requeuer:
    # due() sends no request; tests/integration tests the requests with a server.
    return Requeuer(
        object.__new__(Api),
        service.ledger,
        service.answers.fits,
        interval=0.1,
        per_second=per_second,
        clock=service.clock,
    )


def due(pod_requeuer: Requeuer) -> list[str]:
    return [record.name for record in pod_requeuer._steps() if record is not None]


def free(service: Service, cpus: str, version: str) -> None:
    service.report(counts("n1", cpus, included=(), version=version))


def test_a_pod_is_requeued_once_when_enough_resources_become_free(service: Service) -> None:
    service.put(pod("a", "4", conditions=WAITS))
    pod_requeuer = requeuer(service)
    assert due(pod_requeuer) == []
    service.ledger.drop_pod("uid-other")
    free(service, "8", "2")
    assert due(pod_requeuer) == ["a"]
    assert due(pod_requeuer) == []
    service.clock.now += 1
    free(service, "7", "3")
    assert due(pod_requeuer) == ["a"]


def test_a_pod_requeued_in_vain_is_left_alone_for_longer_and_longer(service: Service) -> None:
    service.put(pod("a", "4", conditions=WAITS))
    pod_requeuer = requeuer(service)
    service.ledger.drop_pod("uid-other")
    times = 0
    for tick in range(600):
        free(service, "8" if tick % 2 else "7", str(tick + 2))
        times += len(due(pod_requeuer))
        service.clock.now += 0.1
    assert times == 6


@pytest.mark.parametrize(
    "fields",
    [
        {"conditions": WAITS, "annotations": {"volcano.sh/numa-topology-policy": "restricted"}},
        {"conditions": [{**WAITS[0], "message": "0/1 nodes are available: 1 Insufficient cpu."}]},
    ],
    ids=["a policy that no node has", "refused by other plugins"],
)
def test_a_pod_that_free_resources_do_not_help_is_not_requeued(service: Service, fields: dict[str, Any]) -> None:
    service.put(pod("a", "4", **fields))
    pod_requeuer = requeuer(service)
    service.ledger.drop_pod("uid-other")
    free(service, "8", "2")
    assert due(pod_requeuer) == []


def test_a_pod_that_begins_to_wait_after_the_node_has_improved_is_requeued(service: Service) -> None:
    service.put(pod("huge", "9", conditions=WAITS))
    pod_requeuer = requeuer(service)
    assert due(pod_requeuer) == []
    # It was refused before, but the event of its condition comes after this.
    service.ledger.drop_pod("uid-other")
    free(service, "8", "2")
    assert due(pod_requeuer) == []
    assert due(pod_requeuer) == []
    service.put(pod("late", "4", conditions=WAITS))
    assert due(pod_requeuer) == ["late"]
    assert due(pod_requeuer) == []
    # The pod was refused after the node had improved.
    service.clock.now += 11
    service.put(pod("later", "3", conditions=WAITS))
    assert due(pod_requeuer) == []


def test_two_hundred_kinds_of_pods_that_fit_nowhere_cost_nothing_once_each_was_tried() -> None:
    service, tried = Service(), []
    for number in range(50):
        service.report(counts(f"n{number}", "0", included=()))
    for number in range(200):
        service.put(pod(f"p{number}", "1", memory=f"{number + 1}Mi", conditions=WAITS))
    pod_requeuer = requeuer(service)
    fits = pod_requeuer._fits

    def count(record: PodRecord, names: Sequence[str]) -> NDArray[np.bool_]:
        tried.append(record.name)
        return fits(record, names)

    pod_requeuer._fits = count
    for number in range(50):
        service.report(counts(f"n{number}", "0", included=(), version="2"))
        service.ledger.node_states.note_improved(f"n{number}")
    for _ in range(4):
        assert due(pod_requeuer) == []
    assert sorted(tried) == sorted(f"p{number}" for number in range(200))
    for _ in range(100):
        service.clock.now += 0.1
        assert due(pod_requeuer) == []
    assert len(tried) == 200


def test_of_more_groups_than_fit_into_a_tick_each_has_its_turn(service: Service) -> None:
    service.report(counts("n2", "0", included=()))
    for number in range(70):
        service.put(pod(f"p{number}", "9", memory=f"{number + 1}Mi", conditions=WAITS, priority=5))
    service.put(pod("small", "4", conditions=WAITS))
    pod_requeuer = requeuer(service)
    service.ledger.drop_pod("uid-other")
    free(service, "8", "2")
    requeued = [name for _ in range(3) for name in due(pod_requeuer)]
    assert requeued == ["small"]


def test_the_most_important_come_first_and_as_many_as_there_are_nodes_for_them(service: Service) -> None:
    for name, priority in (("low", 1), ("high", 9), ("middle", 5)):
        service.put(pod(name, "8", priority=priority, conditions=WAITS))
    pod_requeuer = requeuer(service)
    service.ledger.drop_pod("uid-other")
    free(service, "8", "2")
    assert due(pod_requeuer) == ["high"]
    service.put(pod("high", "8", node="n1"))
    assert due(pod_requeuer) == []


def test_while_a_node_has_free_resources_the_next_pod_of_the_shape_follows(service: Service) -> None:
    for name in ("a", "b", "c"):
        service.put(pod(name, "4", conditions=WAITS, creationTimestamp=f"2026-01-01T00:00:0{ord(name) - 96}Z"))
    pod_requeuer = requeuer(service)
    service.ledger.drop_pod("uid-other")
    free(service, "8", "2")
    assert due(pod_requeuer) == ["a"]
    service.put(pod("a", "4", node="n1"))
    assert due(pod_requeuer) == ["b"]
    service.put(pod("b", "4", node="n1"))
    assert due(pod_requeuer) == []


def test_the_rate_is_limited_and_no_pod_is_forgotten(service: Service) -> None:
    for number in range(4):
        service.put(pod(f"p{number}", "1", memory=f"{number + 1}Mi", conditions=WAITS))
    pod_requeuer = requeuer(service, per_second=20.0)
    pod_requeuer._allowance = 2.0
    service.ledger.drop_pod("uid-other")
    free(service, "8", "2")
    first = due(pod_requeuer)
    pod_requeuer._allowance = 10.0
    assert len(first) == 2
    assert sorted(first + due(pod_requeuer)) == ["p0", "p1", "p2", "p3"]


def test_a_quarantined_node_requeues_no_pod(service: Service) -> None:
    service.put(pod("a", "4", conditions=WAITS))
    pod_requeuer = requeuer(service)
    service.ledger.drop_pod("uid-other")
    free(service, "8", "2")
    service.refuse(pod("b", "4"), "n1")
    assert due(pod_requeuer) == []


def test_an_exact_report_of_freed_resources_requeues_too(service: Service) -> None:
    service.put(pod("a", "4", conditions=WAITS))
    pod_requeuer = requeuer(service)
    service.report(exported(machine(), configuration(), kubelet()))
    assert due(pod_requeuer) == ["a"]
