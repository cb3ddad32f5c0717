"""Lives of a node that resource-topology-exporter reports."""

from __future__ import annotations

import pytest

from lives import NO_MANAGERS, WRITERS, Life, guaranteed

RTE = WRITERS["rte"]


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "koordlet"])
def test_the_order_of_zones_resources_and_costs_means_nothing(name: str) -> None:
    seen = []
    for seed in range(6):
        life = Life(WRITERS[name], seed)
        life.admit(guaranteed("a", "4", "2Gi", 1))
        document = life.seen()
        life.random.shuffle(document["zones"])
        for zone in document["zones"]:
            life.random.shuffle(zone["costs"])
        life.deliver(document)
        seen.append(life.free)
    assert seen == [[3, 8]] * 6


def test_numaplacement_frees_a_pod_that_ended_at_once_where_it_lay() -> None:
    life = Life(RTE)
    for name, cpu in (("a", "4"), ("b", "6")):
        life.bind(guaranteed(name, cpu))
        life.admit(guaranteed(name, cpu))
    life.report()
    life.end("b")
    assert life.free == [3, 8]


def test_without_numaplacement_its_capacity_returns_with_the_next_report() -> None:
    life = Life(RTE, topologyManagerPolicy="restricted")
    for name, cpu in (("a", "4"), ("b", "6")):
        life.bind(guaranteed(name, cpu))
        life.admit(guaranteed(name, cpu))
    life.report()
    life.end("b")
    assert life.free == [3, 2]
    life.release("b")
    life.report()
    assert life.free == [3, 8]


def test_a_pod_that_its_kubelet_lists_before_its_devices_are_allocated_stays_booked() -> None:
    """Its CPUs make it count for the fingerprint; CPUs and devices are allocated one after the other."""
    life = Life(WRITERS["rte-all"])
    life.report()
    pod = guaranteed("a", "4", "2Gi", 2)
    life.bind(pod)
    early = life.seen()
    life.admit(pod)
    late = life.seen()
    for attribute, newer in zip(early["attributes"], late["attributes"], strict=True):
        attribute["value"] = newer["value"]
    life.deliver(early)
    assert life.free == [3, 8]
    assert life.fits(guaranteed("x", "1", "1Gi", 2))
    life.bind(guaranteed("b", "1", "1Gi", 2))
    assert not life.fits(guaranteed("x", "1", "1Gi", 1))
    life.deliver(late)
    assert life.free == [3, 7]
    assert not life.fits(guaranteed("x", "1", "1Gi", 1))


def test_a_kubelet_without_memory_manager_counts_no_memory_and_the_fingerprint_agrees() -> None:
    """A Guaranteed pod of half a CPU has no exclusive resource; scheduler-plugins counts it and distrusts the NRT."""
    life = Life(RTE, memoryManagerPolicy="None", reservedMemory=())
    document = life.seen()
    resources = {resource["name"] for zone in document["zones"] for resource in zone["resources"]}
    assert resources == {"cpu", "example.com/gpu"}
    for name, cpu in (("half", "500m"), ("a", "4")):
        life.bind(guaranteed(name, cpu))
        life.admit(guaranteed(name, cpu))
    life.report()
    assert life.free == [3, 8]
    assert life.fits(guaranteed("x", "8", "30Gi"))


def test_zones_without_allocatable_cpus_mean_a_kubelet_without_managers() -> None:
    life = Life(RTE, **NO_MANAGERS)
    life.report()
    node_state = life.service.ledger.node_states.of("n1")
    assert node_state is not None
    assert node_state.kubelet is not None
    assert (node_state.kubelet.cpu, node_state.kubelet.memory) == (None, None)
    pod = guaranteed("a", "4", "1Gi", 2)
    life.bind(pod)
    life.admit(pod)
    life.report()
    assert life.fits(guaranteed("x", "8", "12Gi", 2))
    assert not life.fits(guaranteed("x", "1", "1Gi", 3))


def test_zones_of_which_the_kubelet_lists_nothing_are_the_systems() -> None:
    """All CPUs of NUMA node 0 are reserved, and it has no devices: RTE writes cpu with 0 allocatable."""
    life = Life(RTE, reservedSystemCPUs="0-7", memoryManagerPolicy="None", reservedMemory=())
    life.kubelet.report_devices("example.com/gpu", ())
    document = life.seen()
    first = next(zone for zone in document["zones"] if zone["name"] == "node-0")
    assert first["resources"] == [{"name": "cpu", "capacity": "8", "allocatable": "0", "available": "0"}]
    life.deliver(document)
    assert life.free == [0, 8]


def test_without_memory_manager_hugepages_are_not_reported_and_not_refused() -> None:
    life = Life(RTE, memoryManagerPolicy="None", reservedMemory=())
    life.report()
    assert life.fits(guaranteed("x", "2", "1Gi", **{"hugepages-2Mi": "1Gi"}))
    static = Life(RTE)
    static.report()
    assert static.fits(guaranteed("x", "2", "1Gi", **{"hugepages-2Mi": "1Gi"}))
    assert not static.fits(guaranteed("x", "2", "1Gi", **{"hugepages-1Gi": "1Gi"}))
