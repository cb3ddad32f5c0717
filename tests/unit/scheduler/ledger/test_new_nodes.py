"""A node that an exporter is to report soon takes no pod to align before its first report, for a limited time."""

from __future__ import annotations

from typing import Any

from scheduling import Service, counts, exact, kubelet, pod
from topowise_scheduler.ledger.pods.exporter_pods import ExporterSettings
from topowise_scheduler.verdicts import refusals


def cluster(**options: Any) -> Service:
    """Returns a service with an old node, n1, whose exporter runs."""
    service = Service(exporters=ExporterSettings(**options))
    service.join("n1", age=9000)
    service.put_exporter("n1")
    service.report(exact(kubelet(), "1"))
    return service


class TestANewNode:
    def test_a_pod_to_align_waits_for_its_first_report(self) -> None:
        service = cluster()
        service.join("n2")
        assert service.fits(pod("a", "2"), "n1", "n2") == ["n1"]
        assert service.ledger.gates.all(service.put(pod("a", "2")), "n2") == refusals.NEW_NODE
        assert len(service.ledger.gates.new_nodes) == 1
        service.report(exact(kubelet(), "1", "n2"))
        assert service.fits(pod("a", "2"), "n1", "n2") == ["n1", "n2"]
        assert len(service.ledger.gates.new_nodes) == 0

    def test_other_pods_do_not_wait(self) -> None:
        service = cluster()
        service.join("n2")
        burstable = pod("b")
        burstable["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        assert service.fits(burstable, "n2") == ["n2"]

    def test_a_pod_that_requests_devices_waits(self) -> None:
        service = cluster()
        service.join("n2")
        burstable = pod("b")
        burstable["spec"]["containers"][0]["resources"] = {"limits": {"example.com/gpu": "1"}}
        assert service.fits(burstable, "n2") == []

    def test_the_wait_ends_without_a_report_and_waiting_pods_are_retried(self) -> None:
        service = cluster(first_report_s=120)
        service.join("n2", age=100)
        service.ledger.node_states.take_improved()
        service.wait(19)
        assert service.fits(pod("a", "2"), "n2") == []
        assert "n2" not in service.ledger.node_states.take_improved()
        service.wait(1)
        assert service.fits(pod("a", "2"), "n2") == ["n2"]
        assert "n2" in service.ledger.node_states.take_improved()

    def test_heartbeats_do_not_extend_the_wait(self) -> None:
        service = cluster(first_report_s=120)
        service.join("n2", age=-3600)
        service.wait(120)
        service.join("n2", age=-3600)
        assert service.fits(pod("a", "2"), "n2") == ["n2"]

    def test_after_a_restart_the_creation_time_counts(self) -> None:
        service = cluster()
        service.join("old", age=120)
        service.join("unknown", age=None)
        assert service.fits(pod("a", "2"), "old", "unknown") == ["old", "unknown"]

    def test_a_node_that_is_made_anew_waits_again(self) -> None:
        service = cluster()
        service.join("n2", age=500)
        service.ledger.reports.drop_node("n2")
        service.join("n2")
        assert service.fits(pod("a", "2"), "n2") == []

    def test_the_wait_can_be_switched_off(self) -> None:
        service = cluster(first_report_s=0)
        service.join("n2")
        assert service.fits(pod("a", "2"), "n2") == ["n2"]


def test_the_first_pod_of_an_exporter_is_a_change() -> None:
    service = Service(exporters=ExporterSettings())
    service.join("n2")
    changes = service.trial.changes
    assert service.fits(pod("a", "2"), "n2") == ["n2"]
    service.put_exporter("n2")
    assert service.fits(pod("a", "2"), "n2") == []
    assert service.trial.changes != changes
    changes = service.trial.changes
    service.put_exporter("n2", ready=False)
    assert service.trial.changes == changes


class TestNodesWithoutAnExporter:
    def test_a_node_that_the_node_selector_excludes_does_not_wait(self) -> None:
        service = cluster(node_selector={"kubernetes.io/os": "linux"})
        service.join("windows", labels={"kubernetes.io/os": "windows"})
        service.join("virtual")
        service.join("linux", labels={"kubernetes.io/os": "linux"})
        assert service.fits(pod("a", "2"), "windows", "virtual", "linux") == ["windows", "virtual"]

    def test_a_label_may_come_later_than_the_node(self) -> None:
        service = cluster(node_selector={"numa": "yes"})
        service.join("n2")
        assert service.fits(pod("a", "2"), "n2") == ["n2"]
        service.join("n2", labels={"numa": "yes"})
        assert service.fits(pod("a", "2"), "n2") == []
        service.join("n2")
        assert service.fits(pod("a", "2"), "n2") == ["n2"]

    def test_a_pod_of_the_exporter_counts_whatever_the_node_selector_says(self) -> None:
        service = cluster(node_selector={"numa": "yes"})
        service.join("n2")
        service.put_exporter("n2", ready=False)
        assert service.fits(pod("a", "2"), "n2") == []

    def test_a_cluster_with_another_exporter_does_not_wait(self) -> None:
        service = Service(exporters=ExporterSettings())
        service.join("n1")
        service.report(counts("n1", "8", included=()))
        service.join("n2")
        assert service.fits(pod("a", "2"), "n1", "n2") == ["n1", "n2"]

    def test_a_pod_with_the_labels_in_another_namespace_is_no_exporter(self) -> None:
        service = Service(exporters=ExporterSettings())
        service.join("n2")
        service.put_exporter("n2", namespace="tenant")
        assert service.fits(pod("a", "2"), "n2") == ["n2"]
