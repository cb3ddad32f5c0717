"""Pods that are resized in place (KEP-1287): the ledger follows the kubelet's allocation, not the request."""

from typing import Any

import pytest

from scheduling import Service, configuration, counts, decoded, kubelet, machine, pod, topology_of
from topowise import nrt, pods
from topowise_scheduler.cluster.node.event_windows import ENDED_KEPT_S
from topowise_scheduler.kubelet import Kubelet


def resized(name: str, requested: str, allocated: str, *, node: str = "n1", memory: str = "1Gi") -> dict[str, Any]:
    """The pod as the API server shows it while its kubelet has `allocated` of the `requested` CPUs."""
    document = pod(name, requested, memory, node=node, phase="Running", startTime="2026-01-01T00:00:00Z")
    document["status"]["qosClass"] = "Guaranteed"
    document["status"]["containerStatuses"] = [
        {"name": "c", "allocatedResources": {"cpu": allocated, "memory": memory}}
    ]
    return document


def exact(version: str, *running: dict[str, Any]) -> nrt.NodeResourceTopology:
    """Returns what the exporter publishes after the kubelet admitted these pods in this order."""
    node: Kubelet = kubelet()
    for document in running:
        assert node.admit(pods.allocated(decoded(document))).admitted
    return topology_of(machine(), configuration(), node, version)


@pytest.fixture
def service() -> Service:
    return Service()


class TestExactReports:
    def test_a_pod_that_has_grown_takes_more_at_once_and_the_report_that_shows_it_is_believed(
        self, service: Service
    ) -> None:
        small, large = resized("a", "1", "1"), resized("a", "3", "3")
        service.put(small)
        service.report(exact("1", small))
        assert sum(service.free("n1")) == 6
        service.put(large)
        assert sum(service.free("n1")) == 4
        service.report(exact("2", large))
        assert sum(service.free("n1")) == 4

    def test_a_report_written_before_the_kubelet_has_resized_does_not_undo_it(self, service: Service) -> None:
        small, large = resized("a", "1", "1"), resized("a", "3", "3")
        service.put(small)
        service.report(exact("1", small))
        service.put(large)
        service.report(exact("2", small, resized("b", "1", "1")))
        assert sum(service.free("n1")) == 3
        service.report(exact("3", large, resized("b", "1", "1")))
        assert sum(service.free("n1")) == 3

    def test_a_resize_that_is_not_granted_changes_nothing(self, service: Service) -> None:
        granted = resized("a", "1", "1")
        service.put(granted)
        service.report(exact("1", granted))
        service.put(resized("a", "3", "1"))
        assert sum(service.free("n1")) == 6

    def test_a_service_that_starts_in_the_middle_books_what_is_allocated(self, service: Service) -> None:
        service.report(exact("1"))
        service.put(resized("a", "3", "1"), is_news=False)
        assert sum(service.free("n1")) == 6

    def test_a_pod_that_has_shrunk_returns_resources(self, service: Service) -> None:
        large, small = resized("a", "3", "3"), resized("a", "1", "1")
        service.put(large)
        service.report(exact("1", large))
        service.put(small)
        assert sum(service.free("n1")) == 6
        service.report(exact("2", small))
        assert sum(service.free("n1")) == 6

    def test_until_the_report_shows_it_a_grown_pod_may_be_on_either_zone(self, service: Service) -> None:
        small, large = resized("a", "1", "1"), resized("a", "3", "3")
        service.put(small)
        service.report(exact("1", small))
        service.put(large)
        assert service.fits(pod("x", "4"), "n1") == []
        service.report(exact("2", large))
        assert service.fits(pod("x", "4"), "n1") == ["n1"]

    def test_a_resize_that_no_report_ever_shows_is_forgotten(self, service: Service) -> None:
        small = resized("a", "1", "1")
        service.put(small)
        service.report(exact("1", small))
        service.put(resized("a", "3", "3"))
        service.clock.now += ENDED_KEPT_S + 1
        service.ledger.tick()
        assert sum(service.free("n1")) == 6

    def test_a_resize_of_what_belongs_to_no_zone_leaves_the_report_alone(self, service: Service) -> None:
        shared = resized("a", "500m", "500m", memory="1Gi")
        service.put(shared)
        service.report(exact("1", shared))
        before = service.free("n1")
        service.put(resized("a", "700m", "700m"))
        node_state = service.state()
        assert node_state.is_reported("uid-a")
        assert service.free("n1") == before


class TestReportsOfCounts:
    def test_growth_is_booked_until_the_next_report_with_the_pod_in_it(self, service: Service) -> None:
        service.report(counts("n1", "7", included=["a"], version="1"))
        service.put(resized("a", "1", "1"))
        assert service.free("n1") == [7]
        service.put(resized("a", "3", "3"))
        assert service.free("n1")[0] <= 5
        service.report(counts("n1", "5", included=["a"], version="2"))
        assert service.free("n1") == [5]


class TestAllocated:
    def test_a_sidecar_can_be_resized(self) -> None:
        document = pod("a", "1", node="n1")
        document["spec"]["initContainers"] = [
            {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}
        ]
        document["status"]["initContainerStatuses"] = [{"name": "s", "allocatedResources": {"cpu": "2"}}]
        needs = pods.needs(pods.allocated(decoded(document)))
        assert needs.containers[0].requests == {"cpu": 2000}
        assert needs.containers[0].limits == {"cpu": 2000}

    @pytest.mark.parametrize("spelled", ["1", "1000m", "1.0"])
    def test_another_spelling_of_the_same_amount_is_no_difference(self, spelled: str) -> None:
        converted = decoded(resized("a", "1", spelled))
        assert pods.allocated(converted) is converted

    def test_without_allocated_resources_in_the_status_the_spec_counts(self) -> None:
        converted = decoded(pod("a", "1", node="n1"))
        assert pods.allocated(converted) is converted

    def test_resources_of_the_pod_itself(self) -> None:
        document = pod("a", "1", node="n1")
        document["spec"]["resources"] = {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}}
        document["status"]["allocatedResources"] = {"cpu": "2"}
        needs = pods.needs(pods.allocated(decoded(document)))
        assert needs.pod_level is not None
        assert needs.pod_level.requests["cpu"] == 2000
