"""A report that differs from the kubelet's current state: the node keeps its known state and takes no pod unchecked."""

from __future__ import annotations

import msgspec
import pytest

from scheduling import Service, counts, exact, kubelet, pod
from topowise import nrt
from topowise_scheduler.verdicts import kube_scheduler


def unconfirmed(version: str, *reasons: str) -> nrt.NodeResourceTopology:
    topology = exact(kubelet(), version)
    marked = nrt.Attribute("topowise.io/unconfirmed", ",".join(reasons))
    return msgspec.structs.replace(topology, attributes=(*topology.attributes, marked))


@pytest.fixture
def service() -> Service:
    started = Service()
    started.ledger.reports.put_node("n1")
    started.report(exact(kubelet(), "1"))
    return started


class TestAKubeletThatRestarts:
    def test_its_node_takes_no_pod_with_exclusive_resources(self, service: Service) -> None:
        service.report(unconfirmed("2", "pods"))
        assert service.fits(pod("a", "2"), "n1") == []
        burstable = pod("b")
        burstable["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
        assert service.fits(burstable, "n1") == ["n1"]
        service.report(exact(kubelet(), "3"))
        assert service.fits(pod("a", "2"), "n1") == ["n1"]

    def test_a_missing_device_plugin_refuses_pods_that_request_its_devices(self, service: Service) -> None:
        service.report(unconfirmed("2", "device:example.com/nic"))
        assert service.fits(pod("a", "2"), "n1") == ["n1"]
        for amount in "10":
            asks = pod("b", "2")
            limits = {"cpu": "2", "memory": "1Gi", "example.com/nic": amount}
            asks["spec"]["containers"][0]["resources"]["limits"] = limits
            assert service.fits(asks, "n1") == []


class TestADeletedObject:
    def test_the_node_goes_on_from_what_was_known(self, service: Service) -> None:
        service.put(pod("a", "4", node="n1"))
        service.ledger.reports.lose("n1")
        assert service.fits(pod("b", "4"), "n1") == []
        assert service.fits(pod("b", "3"), "n1") == ["n1"]
        service.put(pod("c", "3", node="n1"))
        assert service.fits(pod("b", "3"), "n1") == []
        assert service.ledger.gates.unconfirmed.why("n1") == ("object-deleted",)
        (shown,) = service.view.explanations(msgspec.convert(pod("d", "1"), kube_scheduler.Pod), ["n1"])
        assert "object-deleted" in shown.text

    def test_the_next_report_confirms_it(self, service: Service) -> None:
        service.ledger.reports.lose("n1")
        service.report(exact(kubelet(), "2"))
        assert len(service.ledger.gates.unconfirmed) == 0

    def test_it_is_forgotten_with_its_node(self, service: Service) -> None:
        service.ledger.reports.lose("n1")
        service.ledger.reports.drop_node("n1")
        assert service.ledger.node_states.reported() == []
        assert len(service.ledger.gates.unconfirmed) == 0

    def test_a_node_that_is_gone_already_is_forgotten_at_once(self, service: Service) -> None:
        service.ledger.reports.drop_node("n1")
        assert service.ledger.node_states.reported() == ["n1"]
        service.ledger.reports.lose("n1")
        assert service.ledger.node_states.reported() == []

    def test_numbers_of_another_producer_go_on_too(self) -> None:
        service = Service()
        service.ledger.reports.put_node("n1")
        service.report(counts("n1", "8", included=()))
        service.put(pod("a", "6", node="n1"))
        service.ledger.reports.lose("n1")
        assert service.fits(pod("b", "3"), "n1") == []


def of_boot(boot_id: str, version: str) -> nrt.NodeResourceTopology:
    topology, boot = exact(kubelet(), version), nrt.Attribute("topowise.io/boot-id", boot_id)
    return msgspec.structs.replace(topology, attributes=(*topology.attributes, boot))


class TestANodeThatWasRebooted:
    def test_it_takes_no_pod_to_align_before_its_exporter_has_reported_it_again(self) -> None:
        service = Service()
        service.ledger.reports.put_node("n1", "first")
        service.report(of_boot("first", "1"))
        assert service.fits(pod("a", "2"), "n1") == ["n1"]
        service.ledger.reports.put_node("n1", "second")
        assert service.fits(pod("a", "2"), "n1") == []
        assert service.ledger.gates.unconfirmed.why("n1") == ("rebooted",)
        # A heartbeat, and an object that a client without the attribute writes again.
        service.ledger.reports.put_node("n1", "second")
        service.report(of_boot("first", "2"))
        assert service.fits(pod("a", "2"), "n1") == []
        service.report(of_boot("second", "3"))
        assert service.fits(pod("a", "2"), "n1") == ["n1"]

    def test_a_report_that_is_ahead_of_its_node_waits_for_it(self) -> None:
        service = Service()
        service.ledger.reports.put_node("n1", "first")
        service.report(of_boot("second", "1"))
        assert service.fits(pod("a", "2"), "n1") == []
        service.ledger.reports.put_node("n1", "second")
        assert service.fits(pod("a", "2"), "n1") == ["n1"]

    def test_a_report_without_a_boot_id_is_believed(self) -> None:
        service = Service()
        service.ledger.reports.put_node("n1", "first")
        service.report(exact(kubelet(), "1"))
        assert service.fits(pod("a", "2"), "n1") == ["n1"]
        service.report(of_boot("other", "2"))
        service.ledger.reports.put_node("n1")
        assert service.fits(pod("a", "2"), "n1") == ["n1"]

    def test_a_deleted_object_of_the_boot_before_closes_the_node_too(self) -> None:
        service = Service()
        service.ledger.reports.put_node("n1", "first")
        service.report(of_boot("first", "1"))
        service.ledger.reports.lose("n1")
        service.ledger.reports.put_node("n1", "second")
        assert service.ledger.gates.unconfirmed.why("n1") == ("object-deleted", "rebooted")
        assert service.fits(pod("a", "2"), "n1") == []
        service.ledger.reports.drop_node("n1")
        assert len(service.ledger.gates.unconfirmed) == 0
