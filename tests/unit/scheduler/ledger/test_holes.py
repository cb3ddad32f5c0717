"""Free resources of NUMA nodes are computed in advance, from changed nodes alone."""

from __future__ import annotations

import itertools

import msgspec

from lives import GPU, Life, guaranteed
from producers import rte
from sandbox.exported import exported
from scheduling import WAITS, Service, configuration, counts, exact, kubelet, machine, pod
from topowise import nrt
from topowise_scheduler import report
from topowise_scheduler.kubelet import Device, DevicePlugin, Kubelet
from topowise_scheduler.ledger.holes import PODS, Holes


def done(holes: Holes) -> int:
    """Syncs; in how many steps."""
    return sum(1 for _ in holes.sync())


def named(topology: nrt.NodeResourceTopology, name: str) -> nrt.NodeResourceTopology:
    return msgspec.structs.replace(topology, metadata=msgspec.structs.replace(topology.metadata, name=name))


def test_holes_are_counted_on_single_numa_nodes() -> None:
    """Three CPUs free on the first NUMA node, as CPU 0 is the system's, four on the second."""
    service = Service()
    service.report(exact(kubelet()))
    holes = Holes(service.ledger, service.clock)
    done(holes)
    assert holes.pieces()["cpu"] == {1: 7, 2: 3, 4: 1}
    service.put(pod("p", "2", node="n1"))
    service.put(pod("q", "2", node="n1"))
    done(holes)
    # Seven minus four: three CPUs fit in sum, and two or three pods fit on single NUMA nodes.
    assert sum(service.free("n1")) == 3
    assert holes.pieces()["cpu"][4] == 0


def test_devices_have_holes_too() -> None:
    life = Life(rte)
    holes = Holes(life.service.ledger, life.service.clock)
    for name in ("a", "b"):
        life.admit(guaranteed(name, gpus=1))
    life.report()
    done(holes)
    assert holes.pieces()[GPU] == {1: 2, 2: 1}
    life.admit(guaranteed("c", gpus=1))
    life.report()
    done(holes)
    assert holes.pieces()[GPU] == {1: 1, 2: 0}


def test_devices_without_numa_nodes_are_in_no_hole() -> None:
    """A device without NUMA nodes would be counted on every NUMA node."""
    plugin = DevicePlugin("example.com/kvm", tuple(Device(f"kvm{number}") for number in range(8)))
    for zones, expected in ((2, None), (1, {1: 8, 2: 4, 4: 2, 8: 1})):
        hardware = msgspec.structs.replace(machine(zones), devices=(plugin,))
        service = Service()
        node = Kubelet(hardware, configuration())
        service.report(exported(hardware, configuration(), node, lambda uid: ("default", uid)))
        holes = Holes(service.ledger, service.clock)
        done(holes)
        assert holes.pieces().get("example.com/kvm") == expected


def test_only_nodes_that_have_changed_are_looked_at() -> None:
    service = Service()
    for name in ("n1", "n2", "n3"):
        service.ledger.reports.put(report.read(named(exact(kubelet()), name)))
    holes = Holes(service.ledger, service.clock)
    first = done(holes)
    assert first > 3
    assert done(holes) == 0
    service.put(pod("p", "2", node="n2"))
    assert 0 < done(holes) < first
    # A waiting pod concerns each node; a second pod with the same requests changes nothing.
    service.put(pod("a", "4", conditions=WAITS))
    assert done(holes) > first
    service.put(pod("b", "4", conditions=WAITS))
    assert done(holes) == 0


def test_the_loss_of_nodes_and_of_the_cluster() -> None:
    """n1 has a free CPU on the first NUMA node and 3 on the second, and 1 and 2 GiB; n2 has 3 and 4 CPUs."""
    service = Service()
    for name in ("n1", "n2"):
        service.ledger.reports.put(report.read(named(exact(kubelet()), name)))
    service.put(pod("p", "2", memory="14Gi", node="n1"))
    service.put(pod("q", "1", memory="14Gi", node="n1"))
    holes = Holes(service.ledger, service.clock)
    assert (holes.loss("n1"), holes.losses()) == (None, {})
    done(holes)
    assert (service.free("n1"), service.free("n2")) == ([1, 3], [3, 4])
    # Of memory 2 of 3 GiB.
    assert (holes.loss("n1"), holes.loss("n2")) == (33, 0)
    assert holes.losses()["cpu"] == 1 - (3 + 4) / (4 + 4)
    service.put(pod("waits", "4", conditions=WAITS))
    done(holes)
    assert (holes.loss("n1"), holes.loss("n2")) == (100, 0)
    assert holes.losses()[PODS] == 0.5
    service.ledger.drop_pod("uid-waits")
    done(holes)
    assert (holes.loss("n1"), PODS in holes.losses()) == (33, False)


def test_a_sync_computes_the_fragmentation_for_a_tenth_of_a_second() -> None:
    """Each step takes 60 ms by this clock, and a node has several steps. A sync starts no node after 100 ms."""
    service = Service()
    names = tuple(f"n{number}" for number in range(7))
    for name in names:
        service.ledger.reports.put(report.read(named(exact(kubelet()), name)))
    readings = itertools.count()
    holes = Holes(service.ledger, lambda: 0.06 * next(readings))
    known = []
    for _ in range(4):
        done(holes)
        known.append(sum(holes.loss(name) is not None for name in names))
    assert known == [1, 2, 3, 4]


def test_a_node_that_is_gone_has_no_holes() -> None:
    service = Service()
    service.report(exact(kubelet()))
    holes = Holes(service.ledger, service.clock)
    done(holes)
    service.ledger.reports.drop("n1")
    done(holes)
    assert (holes.loss("n1"), holes.losses()) == (None, {})
    assert not any(count for pieces in holes.pieces().values() for count in pieces.values())


def test_resources_that_reports_make_up_are_bounded() -> None:
    service = Service()
    document = msgspec.to_builtins(counts("n1", "8"))
    zone = document["zones"][0]
    zone["resources"] = [{**zone["resources"][0], "name": f"example.com/r{number}"} for number in range(100)]
    service.report(nrt.decode(msgspec.json.encode(document)))
    holes = Holes(service.ledger, service.clock)
    done(holes)
    assert len(holes.pieces()) == 32
    assert len(holes.losses()) <= 32
