"""Holes and waits are computed in advance, from changed nodes and pods alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from lives import GPU, Life, guaranteed
from producers import rte
from sandbox.exported import exported
from scheduling import WAITS, Service, configuration, counts, decoded, exact, kubelet, machine, pod
from topowise import nrt
from topowise_scheduler import metrics, report
from topowise_scheduler.kubelet import Device, DevicePlugin, Kubelet
from topowise_scheduler.shortage import Holes, Shortage, Waits


def done(task: Holes | Waits) -> int:
    """Syncs; in how many steps."""
    return sum(1 for _ in task.sync())


def named(topology: nrt.NodeResourceTopology, name: str) -> nrt.NodeResourceTopology:
    return msgspec.structs.replace(topology, metadata=msgspec.structs.replace(topology.metadata, name=name))


def test_holes_are_counted_on_single_numa_nodes() -> None:
    """Three CPUs free on the first NUMA node, as CPU 0 is the system's, four on the second."""
    service = Service()
    service.report(exact(kubelet()))
    holes = Holes(service.ledger)
    done(holes)
    assert holes.largest()["cpu"] == 4
    assert holes.pieces()["cpu"] == {1: 7, 2: 3, 4: 1}
    service.put(pod("p", "2", node="n1"))
    service.put(pod("q", "2", node="n1"))
    done(holes)
    # Seven minus four: three CPUs fit in sum, and two or three pods fit on single NUMA nodes.
    assert sum(service.free("n1")) == 3
    assert holes.largest()["cpu"] == max(service.free("n1"))
    assert holes.pieces()["cpu"][4] == 0


def test_devices_have_holes_too() -> None:
    life = Life(rte)
    holes = Holes(life.service.ledger)
    for name in ("a", "b"):
        life.admit(guaranteed(name, gpus=1))
    life.report()
    done(holes)
    assert holes.pieces()[GPU] == {1: 2, 2: 1}
    life.admit(guaranteed("c", gpus=1))
    life.report()
    done(holes)
    assert (holes.largest()[GPU], holes.pieces()[GPU]) == (1, {1: 1, 2: 0})


def test_devices_without_numa_nodes_are_in_no_hole() -> None:
    """A device without NUMA nodes would be counted on every NUMA node."""
    plugin = DevicePlugin("example.com/kvm", tuple(Device(f"kvm{number}") for number in range(8)))
    for zones, expected in ((2, None), (1, {1: 8, 2: 4, 4: 2, 8: 1})):
        hardware = msgspec.structs.replace(machine(zones), devices=(plugin,))
        service = Service()
        node = Kubelet(hardware, configuration())
        service.report(exported(hardware, configuration(), node, lambda uid: ("default", uid)))
        holes = Holes(service.ledger)
        done(holes)
        assert holes.pieces().get("example.com/kvm") == expected


def test_only_nodes_that_have_changed_are_looked_at() -> None:
    service = Service()
    for name in ("n1", "n2", "n3"):
        service.ledger.reports.put(report.read(named(exact(kubelet()), name)))
    holes = Holes(service.ledger)
    assert [done(holes), done(holes)] == [3, 0]
    service.put(pod("p", "2", node="n2"))
    assert done(holes) == 1


def test_a_node_that_is_gone_has_no_holes() -> None:
    service = Service()
    service.report(exact(kubelet()))
    holes = Holes(service.ledger)
    done(holes)
    service.ledger.reports.drop("n1")
    done(holes)
    assert holes.largest() == dict.fromkeys(holes.largest(), 0)
    assert not any(count for pieces in holes.pieces().values() for count in pieces.values())


def test_resources_that_reports_make_up_are_bounded() -> None:
    service = Service()
    document = msgspec.to_builtins(counts("n1", "8"))
    zone = document["zones"][0]
    zone["resources"] = [{**zone["resources"][0], "name": f"example.com/r{number}"} for number in range(100)]
    service.report(nrt.decode(msgspec.json.encode(document)))
    holes = Holes(service.ledger)
    done(holes)
    assert len(holes.pieces()) == 32
    assert len(holes.largest()) == 32


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
    assert registry.get_sample_value("topowise_scheduler_largest_free_shape", {"resource": "cpu"}) is None
    done(shortage.holes)
    done(shortage.waits)
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
