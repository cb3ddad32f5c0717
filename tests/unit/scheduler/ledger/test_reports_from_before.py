"""Reports from before a pod's admission that arrive after the end of another pod."""

from __future__ import annotations

from typing import Any

from scheduling import Service, configuration, decoded, exact, kubelet, machine, pod, topology_of
from topowise_scheduler.kubelet import Kubelet

LONG_AFTER_S = 10.0
STARTED = "2026-11-23T12:00:00Z"


def admit(node: Kubelet, document: dict[str, Any]) -> None:
    assert node.admit(decoded(document)).admitted


def bound(name: str, cpu: str, memory: str = "1Gi") -> dict[str, Any]:
    """A pod that its kubelet has admitted."""
    return pod(name, cpu, memory, node="n1", phase="Running", startTime=STARTED)


def test_a_pod_stays_beside_the_pod_that_was_there_when_its_kubelet_admitted_it(service: Service) -> None:
    before = kubelet()
    admit(before, bound("ended", "3"))
    service.put(bound("ended", "3"))
    service.report(exact(before, version="1"))
    service.put(bound("late", "3"))
    assert service.free("n1") == [0, 1]
    service.clock.now += LONG_AFTER_S
    service.ledger.drop_pod("uid-ended")
    assert service.free("n1") == [3, 1]
    for version in ("2", "3"):
        service.clock.now += 0.1
        service.report(exact(before, version=version))
        assert service.free("n1") == [3, 1]
    # The second NUMA node has 4 CPUs, of which the pod "late" has 3.
    assert service.fits(pod("next", "4"), "n1") == []


def test_memory_groups_stay_as_they_were_when_the_kubelet_admitted_the_pod(service: Service) -> None:
    config = configuration(topologyManagerPolicy="best-effort")
    hardware = machine(4)

    def report(node: Kubelet, version: str) -> None:
        service.report(topology_of(hardware, config, node, version))

    before = Kubelet(hardware, config)
    ended, late = bound("ended", "1", "14Gi"), bound("late", "1", "20Gi")
    admit(before, ended)
    service.put(ended)
    report(before, "1")
    service.put(late)
    truth = before.fork()
    admit(truth, late)
    truth.remove("uid-ended")
    service.clock.now += LONG_AFTER_S
    service.ledger.drop_pod("uid-ended")
    for version in ("2", "3"):
        service.clock.now += 0.1
        report(before, version)
    assert memory_of(service.node()) == memory_of(truth)
    # The pod has memory of the second and the third NUMA node, as the first was allocated.
    assert memory_of(truth)[1] == [0b0001, 0b0110, 0b0110, 0b1000]


def test_a_pod_is_uncertain_if_the_report_is_older_than_the_pod_that_ended(service: Service) -> None:
    empty = kubelet()
    service.report(exact(empty, version="1"))
    service.put(bound("ended", "3"))
    service.clock.now += LONG_AFTER_S
    service.put(bound("late", "3"))
    assert service.free("n1") == [0, 1]
    service.clock.now += LONG_AFTER_S
    service.ledger.drop_pod("uid-ended")
    service.clock.now += LONG_AFTER_S
    service.report(exact(empty, version="2"))
    # The model would place the pod "late" on either NUMA node: a pod must fit in both cases.
    assert service.fits(pod("next", "4"), "n1") == []
    assert service.fits(pod("small", "1"), "n1") == ["n1"]


def test_a_pod_of_the_same_name_in_the_same_place_is_another_pod(service: Service) -> None:
    node, empty = kubelet(), kubelet()
    admit(node, bound("again", "3"))
    service.put(bound("again", "3"))
    service.report(exact(node, version="1"))
    service.ledger.drop_pod("uid-again")
    service.report(exact(empty, version="2"))
    assert service.free("n1") == [3, 4]
    service.put({**bound("again", "3"), "metadata": {"name": "again", "namespace": "default", "uid": "uid-second"}})
    service.report(exact(node, version="3"))
    assert service.free("n1") == [0, 4]


def memory_of(node: Kubelet) -> tuple[dict[str, list[int]], list[int]]:
    """Returns free bytes by type and NUMA node, and the memory group of each NUMA node."""
    assert node.memory is not None
    return node.memory.tables.free, list(node.memory.tables.cells)


def test_a_pod_that_ended_before_the_service_started_has_no_resources(service: Service) -> None:
    """The report is older than the end, and no report comes after it."""
    before = kubelet()
    admit(before, bound("ended", "3"))
    service.put(pod("ended", "3", node="n1", phase="Succeeded", startTime=STARTED), is_news=False)
    service.report(exact(before, version="1"))
    assert service.free("n1") == [3, 4]
    # A report that lists the pod two minutes later is newer than the end: its kubelet has not got the CPUs back.
    service.wait(121.0)
    assert service.free("n1") == [0, 4]
    service.ledger.drop_pod("uid-ended")
    service.report(exact(kubelet(), version="2"))
    assert service.free("n1") == [3, 4]
