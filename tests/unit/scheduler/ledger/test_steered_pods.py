"""A pod whose NUMA node the service has chosen has one possible placement, so no other pod waits for its report."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduling import Service, container, counts, exact, kubelet, pod
from steering_pods import marked, requiring
from topowise.steering import RESOURCE
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts.refusals import Refusal


def assume(service: Service, record: PodRecord, zone: int | None) -> None:
    """The Binding of a pod is on its way, after the kubelet has the label of this NUMA node."""
    assert record.needs is not None
    assert service.ledger.reservations.assume(msgspec.structs.replace(record, steered=zone), record.needs, "n1") is None


@pytest.fixture
def service() -> Service:
    """Returns a service with a node of 3 and 4 free CPUs."""
    service = Service()
    service.report(exact(kubelet()))
    return service


def rest(*cpus: str) -> dict[str, Any]:
    """Returns a pod with a container for each number of CPUs."""
    return pod("rest", containers=[container({"cpu": cpu, "memory": "1Gi"}, f"c{at}") for at, cpu in enumerate(cpus)])


def test_a_reserved_pod_that_requires_a_numa_node_does_not_wait_for_its_bind(service: Service) -> None:
    """It is bound with the label or not at all, and its bind may wait for the labels of other pods."""
    service.reserve(requiring("a", 1))
    assert service.free("n1") == [3, 2]
    assert service.fits(rest("3", "2"), "n1") == ["n1"]
    assert service.fits(rest("1", "4"), "n1") == []


@pytest.mark.parametrize(("zone", "fits"), [(1, ["n1"]), (None, [])])
def test_an_end_that_the_kubelet_saw_first_moves_unsteered_pods_only(
    service: Service, zone: int | None, fits: list[str]
) -> None:
    """The first pod had left no CPUs on NUMA node 0, unless it ended before the second pod was admitted."""
    first = service.put(pod("first", "3"))
    assume(service, first, None)
    assume(service, service.put(marked("a")), zone)
    assert service.free("n1") == [0, 2]
    service.ledger.drop_pod(first.uid)
    assert service.free("n1") == [3, 2]
    question = service.question(rest("3", "2"), "n1")
    assert service.fits(rest("3", "2"), "n1") == fits
    assert service.answers.verdicts(question).refusal(0) == (None if fits else Refusal.UNCERTAIN)


def test_events_of_the_pod_keep_its_numa_node(service: Service) -> None:
    assume(service, service.put(marked("a")), 1)
    service.put(marked("a", node="n1"))
    service.put(marked("a", node="n1", phase="Running", startTime="2026-01-01T00:00:00Z"))
    assert service.free("n1") == [3, 2]
    assert service.fits(rest("3", "2"), "n1") == ["n1"]


def test_the_report_decides(service: Service) -> None:
    """Whatever the label was, a report lists the CPUs that the kubelet has given."""
    node = kubelet()
    record = service.put(marked("a"))
    assume(service, record, 1)
    assert node.admit_view(record.view(node)).admitted
    service.report(exact(node, "2"))
    assert service.free("n1") == [1, 4]


def test_a_resized_pod_is_placed_as_the_kubelet_would(service: Service) -> None:
    assume(service, service.put(marked("a")), 1)
    service.put(marked("a", "1", node="n1", phase="Running", startTime="2026-01-01T00:00:00Z"))
    assert service.free("n1") == [2, 4]


def test_init_containers_leave_the_number_of_cpus_open(service: Service) -> None:
    """An app container takes CPUs of the init container and free CPUs alike."""
    amounts = {"cpu": "1", "memory": "1Gi", RESOURCE: "1"}
    larger = {**amounts, "cpu": "2"}
    document = pod("a", initContainers=[container(amounts, "i")], containers=[container(larger)])
    assume(service, service.put(document), 1)
    assert service.free("n1") == [3, 2]
    assert service.fits(rest("3", "2"), "n1") == []
    assert service.fits(rest("1"), "n1") == ["n1"]


def test_amounts_of_markers_in_a_report_of_another_exporter_do_not_count() -> None:
    """It read the label of that moment, and a marker is near no NUMA node at rest."""
    service = Service()
    topology = counts("n1", ("4", "4"), included=())
    first, second = topology.zones or ()
    amount = {"name": RESOURCE, "capacity": "512", "allocatable": "512", "available": "512"}
    labelled = msgspec.structs.replace(
        first, resources=(*(first.resources or ()), msgspec.convert(amount, type(first.resources[0])))
    )
    service.report(msgspec.structs.replace(topology, zones=(labelled, second)))
    assume(service, service.put(pod("first", "3")), None)
    assert service.fits(marked("a", "4"), "n1") == service.fits(pod("b", "4"), "n1")
    state = service.state()
    assert RESOURCE not in state.kubelet.devices.tables
