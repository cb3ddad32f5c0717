"""Waits are computed in advance, from pods alone."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from scheduling import WAITS, Service, exact, kubelet, pod
from topowise_scheduler import metrics
from topowise_scheduler.holes import PODS, Holes
from topowise_scheduler.shortage import Shortage, Waits


def done(task: Holes | Waits) -> int:
    """Syncs; in how many steps."""
    return sum(1 for _ in task.sync())


@pytest.mark.parametrize(("cpu", "cause"), [("4", "room"), ("5", "never"), ("2", "none")])
def test_pods_wait_for_a_cause(cpu: str, cause: str) -> None:
    """Three CPUs are free on the first NUMA node, a CPU on the second."""
    service = Service()
    service.report(exact(kubelet()))
    service.put(pod("there", "3", node="n1"))
    waits = Waits(service.ledger, service.answers, lambda _: None, service.clock)
    service.put(pod("waits", cpu, conditions=WAITS))
    done(waits)
    service.clock.now += 90.0
    assert {name: count for name, count in waits.counts().items() if count} == {cause: 1}
    assert {name: seconds for name, seconds in waits.longest().items() if seconds} == {cause: 90.0}


def test_the_cause_changes_with_the_nodes() -> None:
    service = Service()
    service.report(exact(kubelet()))
    service.put(pod("there", "4", node="n1"))
    service.put(pod("waits", "4", conditions=WAITS))
    waits = Waits(service.ledger, service.answers, lambda _: None, service.clock)
    done(waits)
    assert waits.counts()["room"] == 1
    service.ledger.drop_pod("uid-there")
    done(waits)
    assert waits.counts() == {"room": 0, "never": 0, "none": 1}


def test_nothing_is_judged_again_where_nothing_has_changed() -> None:
    service = Service()
    service.report(exact(kubelet()))
    service.put(pod("there", "4", node="n1"))
    for name in ("a", "b"):
        service.put(pod(name, "4", conditions=WAITS))
    waits = Waits(service.ledger, service.answers, lambda _: None, service.clock)
    assert [done(waits), done(waits)] == [1, 0]
    # A new pod of the same shape is judged.
    service.put(pod("c", "4", conditions=WAITS))
    assert [done(waits), done(waits)] == [1, 0]
    assert waits.counts()["room"] == 3


def test_a_bound_pod_has_waited_and_a_deleted_pod_has_not() -> None:
    service = Service()
    service.report(exact(kubelet()))
    waited: list[float] = []
    waits = Waits(service.ledger, service.answers, waited.append, service.clock)
    for name in ("bound", "deleted"):
        service.put(pod(name, "2", conditions=WAITS))
    done(waits)
    service.clock.now += 30.0
    service.put(pod("bound", "2", node="n1"))
    service.ledger.drop_pod("uid-deleted")
    done(waits)
    assert waited == [30.0]
    assert not any(waits.counts().values())


def test_scrapes_read_what_the_last_sync_has_found() -> None:
    service = Service()
    service.report(exact(kubelet()))
    service.put(pod("there", "4", node="n1"))
    service.put(pod("waits", "4", conditions=WAITS))
    registry = CollectorRegistry()
    shortage: Shortage = metrics.watch_shortage(registry, service.ledger, service.answers)
    assert registry.get_sample_value("topowise_scheduler_fragmentation_ratio", {"kind": "cpu"}) is None
    done(shortage.holes)
    done(shortage.waits)
    assert registry.get_sample_value("topowise_scheduler_fragmentation_ratio", {"kind": "cpu"}) == 0
    assert registry.get_sample_value("topowise_scheduler_fragmentation_ratio", {"kind": PODS}) is None
    free = registry.get_sample_value("topowise_scheduler_free_shapes", {"resource": "cpu", "size": "2"})
    assert free == sum(cpus // 2 for cpus in service.free("n1"))
    assert registry.get_sample_value("topowise_scheduler_waiting_pods_by_cause", {"cause": "room"}) == 1
