"""Free resources of NUMA nodes are computed in advance, from changed nodes alone."""

from __future__ import annotations

import msgspec

from lives import GPU, Life, guaranteed
from producers import rte
from sandbox.exported import exported
from scheduling import Service, configuration, counts, exact, kubelet, machine, pod
from topowise import nrt
from topowise_scheduler import report
from topowise_scheduler.holes import Holes
from topowise_scheduler.kubelet import Device, DevicePlugin, Kubelet


def done(holes: Holes) -> int:
    """Syncs; in how many steps."""
    return sum(1 for _ in holes.sync())


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
