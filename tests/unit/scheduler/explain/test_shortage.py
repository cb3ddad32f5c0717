"""Waits are computed in advance, from pods alone."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from scheduling import WAITS, Service, decoded, exact, kubelet, pod
from topowise_scheduler.explain.shortage import Shortage, Waits
from topowise_scheduler.ledger.holes import PODS, Holes
from topowise_scheduler.serve import metrics


def done(task: Holes | Waits) -> int:
    """Syncs; in how many steps."""
    return sum(1 for _ in task.sync())


def busy() -> Service:
    """A reported node with a free CPU on the first NUMA node and two on the second."""
    service, node = Service(), kubelet()
    for name in ("a", "b"):
        document = pod(name, "2", node="n1", phase="Running")
        service.put(document)
        node.admit(decoded(document))
    service.report(exact(node))
    return service


@pytest.mark.parametrize(("cpu", "cause"), [("3", "alignment"), ("4", "resources"), ("5", "never"), ("2", "retry")])
def test_pods_wait_for_a_cause(cpu: str, cause: str) -> None:
    service = busy()
    waits = Waits(service.ledger, service.view, lambda _: None, service.clock)
    service.put(pod("waits", cpu, conditions=WAITS))
    done(waits)
    service.clock.now += 90.0
    assert {name: count for name, count in waits.counts().items() if count} == {cause: 1}
    assert {name: seconds for name, seconds in waits.longest().items() if seconds} == {cause: 90.0}


def test_the_cause_changes_with_the_nodes() -> None:
    service = busy()
    service.put(pod("waits", "3", conditions=WAITS))
    waits = Waits(service.ledger, service.view, lambda _: None, service.clock)
    done(waits)
    assert waits.counts()["alignment"] == 1
    service.ledger.drop_pod("uid-a")
    done(waits)
    assert {cause: count for cause, count in waits.counts().items() if count} == {"retry": 1}


def test_nothing_is_judged_again_where_nothing_has_changed() -> None:
    service = busy()
    for name in ("x", "y"):
        service.put(pod(name, "3", conditions=WAITS))
    waits = Waits(service.ledger, service.view, lambda _: None, service.clock)
    assert done(waits) > 0
    assert done(waits) == 0
    # A new pod of the same class gets the cause of the class.
    service.put(pod("z", "3", conditions=WAITS))
    assert [done(waits), done(waits)] == [1, 0]
    assert waits.counts()["alignment"] == 3


def test_a_bound_pod_has_waited_and_a_deleted_pod_has_not() -> None:
    service = Service()
    service.report(exact(kubelet()))
    waited: list[float] = []
    waits = Waits(service.ledger, service.view, waited.append, service.clock)
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
    service = busy()
    service.put(pod("waits", "3", conditions=WAITS))
    registry = CollectorRegistry()
    shortage: Shortage = metrics.watch_shortage(registry, service.ledger, service.view)
    assert registry.get_sample_value("topowise_scheduler_fragmentation_ratio", {"kind": "cpu"}) is None
    done(shortage.holes)
    done(shortage.waits)
    # Three CPUs are free together, and at most two on a NUMA node.
    assert registry.get_sample_value("topowise_scheduler_fragmentation_ratio", {"kind": "cpu"}) == pytest.approx(1 / 3)
    assert registry.get_sample_value("topowise_scheduler_fragmentation_ratio", {"kind": PODS}) == 1
    free = registry.get_sample_value("topowise_scheduler_free_shapes", {"resource": "cpu", "size": "2"})
    assert free == sum(cpus // 2 for cpus in service.free("n1"))
    assert registry.get_sample_value("topowise_scheduler_waiting_pods_by_cause", {"cause": "alignment"}) == 1


def never_sent(name: str, **fields: Any) -> dict[str, Any]:
    """A pod that kube-scheduler refused without the extender."""
    condition = {**WAITS[0], "message": "0/1 nodes are available: 1 node(s) were unschedulable."}
    return pod(name, "2", conditions=[condition], **fields)


def test_a_pod_that_kube_scheduler_itself_refused_waits_too() -> None:
    service = Service()
    service.report(exact(kubelet()))
    service.put_node("n1", {"unschedulable": True})
    service.put(never_sent("w"))
    waits = Waits(service.ledger, service.view, lambda _: None, service.clock)
    done(waits)
    assert (len(service.ledger.waiting), waits.counts()["excluded"]) == (0, 1)
    service.put(pod("w", "2", node="n1"))
    done(waits)
    assert not service.ledger.unscheduled


def test_a_tolerating_pod_is_no_pod_of_the_same_class() -> None:
    service = Service()
    service.report(exact(kubelet()))
    service.put_node("n1", {"taints": [{"key": "only", "effect": "NoSchedule"}]})
    service.put(never_sent("excluded"))
    service.put(never_sent("tolerating", tolerations=[{"operator": "Exists"}]))
    waits = Waits(service.ledger, service.view, lambda _: None, service.clock)
    done(waits)
    assert (waits.counts()["excluded"], waits.counts()["retry"]) == (1, 1)


def test_pods_that_kube_scheduler_refused_are_bounded() -> None:
    service = Service()
    service.ledger._not_sent.most_bytes = 20_000
    for number in range(100):
        service.put(never_sent(f"w{number}"))
    assert 2 < len(service.ledger.unscheduled) < 20
    assert "uid-w99" in service.ledger.unscheduled


def test_constraints_that_fill_memory_are_not_kept() -> None:
    service = Service()
    record = service.put(never_sent("w", nodeSelector={"k": "v" * (1 << 15)}))
    assert record.constraints is None
    assert service.put(never_sent("x", nodeSelector={"k": "v"})).constraints is not None
