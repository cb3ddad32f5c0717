"""Pods that are resized in place (KEP-1287): the ledger follows the kubelet's allocation, not the request."""

from typing import Any

import pytest

from scheduling import Service, configuration, counts, decoded, kubelet, machine, pod, topology_of
from topowise import nrt, pods
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.node.event_windows import ENDED_KEPT_S


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


SMALL, LARGE = resized("a", "1", "1"), resized("a", "3", "3")


def reported(service: Service, document: dict[str, Any]) -> None:
    """The pod runs, and the first report has it."""
    service.put(document)
    service.report(exact("1", document))


class TestExactReports:
    def test_a_pod_that_has_grown_takes_more_at_once_and_the_report_that_shows_it_is_believed(
        self, service: Service
    ) -> None:
        """Until then it may be on either zone."""
        reported(service, SMALL)
        assert sum(service.free("n1")) == 6
        service.put(LARGE)
        assert sum(service.free("n1")) == 4
        assert service.fits(pod("x", "4"), "n1") == []
        service.report(exact("2", LARGE))
        assert sum(service.free("n1")) == 4
        assert service.fits(pod("x", "4"), "n1") == ["n1"]

    def test_a_report_written_before_the_kubelet_has_resized_does_not_undo_it(self, service: Service) -> None:
        reported(service, SMALL)
        service.put(LARGE)
        service.report(exact("2", SMALL, resized("b", "1", "1")))
        assert sum(service.free("n1")) == 3
        service.report(exact("3", LARGE, resized("b", "1", "1")))
        assert sum(service.free("n1")) == 3

    def test_a_resize_that_is_not_granted_changes_nothing(self, service: Service) -> None:
        reported(service, SMALL)
        service.put(resized("a", "3", "1"))
        assert sum(service.free("n1")) == 6

    def test_a_service_that_starts_in_the_middle_books_what_is_allocated(self, service: Service) -> None:
        service.report(exact("1"))
        service.put(resized("a", "3", "1"), is_news=False)
        assert sum(service.free("n1")) == 6

    def test_a_pod_that_has_shrunk_returns_resources(self, service: Service) -> None:
        reported(service, LARGE)
        service.put(SMALL)
        assert sum(service.free("n1")) == 6
        service.report(exact("2", SMALL))
        assert sum(service.free("n1")) == 6

    def test_a_resize_that_no_report_ever_shows_is_forgotten(self, service: Service) -> None:
        reported(service, SMALL)
        service.put(LARGE)
        service.wait(ENDED_KEPT_S + 1)
        assert sum(service.free("n1")) == 6

    def test_a_resize_of_what_belongs_to_no_zone_leaves_the_report_alone(self, service: Service) -> None:
        reported(service, resized("a", "500m", "500m", memory="1Gi"))
        before = service.free("n1")
        service.put(resized("a", "700m", "700m"))
        assert service.state().is_reported("uid-a")
        assert service.free("n1") == before


class TestReportsOfCounts:
    def test_growth_is_booked_until_the_next_report_with_the_pod_in_it(self, service: Service) -> None:
        service.report(counts("n1", "7", included=["a"], version="1"))
        service.put(SMALL)
        assert service.free("n1") == [7]
        service.put(LARGE)
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
