"""A report that is outdated because its exporter is gone or hangs: shown, and no pod is placed on top of another."""

from __future__ import annotations

from typing import Any

import msgspec

from scheduling import Service, counts, exact, kubelet, pod
from topowise import nrt
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.ledger.pods.exporter_pods import ExporterSettings
from topowise_scheduler.verdicts.refusals import Refusal

GRACE_S = 120.0


def running(name: str, cpu: str = "2", **fields: Any) -> dict[str, Any]:
    """Returns a pod that runs on n1."""
    return pod(name, cpu, node="n1", **{"phase": "Running", "startTime": "2027-01-15T08:00:00Z", **fields})


def cluster() -> Service:
    service = Service(exporters=ExporterSettings())
    service.join("n1", age=9000)
    service.put_exporter("n1")
    service.report(exact(kubelet(), "1"))
    service.ledger.tick()
    return service


def wait(service: Service, seconds: float) -> None:
    """Lets time pass as the daemon does."""
    for _ in range(4):
        service.wait(seconds / 4)


def without_exporter() -> Service:
    """The exporter has not been ready for the whole grace."""
    service = cluster()
    service.put_exporter("n1", ready=False)
    service.ledger.tick()
    wait(service, GRACE_S)
    return service


def why(service: Service) -> tuple[str, ...]:
    return service.ledger.gates.unconfirmed.why("n1")


class TestAnExporterThatIsGone:
    def test_two_pods_are_not_bound_one_on_top_of_the_other(self) -> None:
        service = cluster()
        service.ledger.drop_pod(service.put_exporter("n1"))
        service.ledger.tick()
        wait(service, GRACE_S)
        assert why(service) == ("exporter-down",)
        assert service.ledger.gates.unconfirmed.causes() == {"exporter-down": 1}
        first, second = service.put(pod("a", "2")), service.put(pod("b", "2"))
        assert service.assume(first) == ""
        assert service.fits(pod("b", "2"), "n1") == []
        assert service.assume(second) == TEXTS[Refusal.EXPORTER_DOWN]
        service.put(running("a"))
        wait(service, GRACE_S)
        assert why(service) == ("exporter-down", "pods-unreported")
        assert service.fits(pod("b", "2"), "n1") == []

    def test_the_node_is_open_again_after_the_report_or_the_end_of_the_pod(self) -> None:
        service = without_exporter()
        service.put(running("a"))
        assert service.fits(pod("b", "2"), "n1") == []
        service.ledger.drop_pod("uid-a")
        assert service.fits(pod("b", "2"), "n1") == ["n1"]
        record = service.put(running("c"))
        node = kubelet()
        assert node.admit_view(record.view(node)).admitted
        service.report(exact(node, "2"))
        assert service.fits(pod("b", "2"), "n1") == ["n1"]

    def test_an_update_of_the_daemon_set_closes_nothing(self) -> None:
        service = cluster()
        for _ in range(3):
            service.ledger.drop_pod(service.put_exporter("n1"))
            wait(service, GRACE_S / 2)
            service.put_exporter("n1", ready=False)
            wait(service, GRACE_S / 3)
            service.put(running("a"))
            assert service.fits(pod("b", "2"), "n1") == ["n1"]
            assert why(service) == ()
            service.ledger.drop_pod("uid-a")
            service.put_exporter("n1")
            service.ledger.tick()

    def test_pods_without_exclusive_resources_neither_count_nor_wait(self) -> None:
        service = without_exporter()
        burstable = running("a")
        burstable["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
        service.put(burstable)
        assert service.fits(pod("b", "2"), "n1") == ["n1"]
        service.put(running("c"))
        del burstable["spec"]["nodeName"]
        assert service.fits(burstable, "n1") == ["n1"]

    def test_a_node_that_becomes_ready_is_retried(self) -> None:
        service = without_exporter()
        service.ledger.node_states.take_improved()
        service.put_exporter("n1")
        service.ledger.tick()
        assert service.ledger.node_states.take_improved() == {"n1"}
        assert why(service) == ()

    def test_a_node_that_is_not_ready_is_not_examined_and_has_the_whole_grace_afterwards(self) -> None:
        service = cluster()
        service.join("n1", ready=False)
        service.put_exporter("n1", ready=False)
        service.put(running("a"))
        wait(service, 10 * GRACE_S)
        assert why(service) == ()
        service.join("n1")
        service.ledger.tick()
        assert why(service) == ("pods-unreported",)
        wait(service, GRACE_S)
        assert why(service) == ("exporter-down", "pods-unreported")

    def test_a_node_that_is_gone_is_forgotten(self) -> None:
        service = without_exporter()
        service.ledger.drop_pod(service.put_exporter("n1"))
        service.ledger.reports.drop_node("n1")
        changes = service.ledger.node_states.changes
        service.ledger.reports.lose("n1")
        service.ledger.tick()
        assert len(service.ledger.gates.unconfirmed) == 0
        assert not service.ledger.exporters.is_known
        assert service.ledger.node_states.changes > changes
        assert list(service.ledger.node_states.changed_since(0)) == []

    def test_a_deleted_object_is_a_change(self) -> None:
        service = cluster()
        changes = service.ledger.node_states.changes
        service.ledger.reports.lose("n1")
        assert why(service) == ("object-deleted",)
        assert service.ledger.node_states.changes > changes

    def test_an_exporter_that_was_gone_before_the_service_is_missed_by_the_boot_id(self) -> None:
        service = Service(exporters=ExporterSettings())
        for name in ("n1", "n2", "n3"):
            service.join(name, age=9000)
        service.put_exporter("n2")
        reported = exact(kubelet(), "1")
        boot = nrt.Attribute("topowise.io/boot-id", "first")
        service.report(msgspec.structs.replace(reported, attributes=(*reported.attributes, boot)))
        # Another exporter reports n3.
        service.report(counts("n3", "8", included=()))
        service.ledger.tick()
        wait(service, GRACE_S)
        assert why(service) == ("exporter-down",)
        assert service.ledger.gates.unconfirmed.why("n3") == ()


class TestAReportThatLacksAPod:
    def test_it_is_unconfirmed_and_stays_open(self) -> None:
        service = cluster()
        service.put(running("a"))
        wait(service, GRACE_S - 1)
        assert why(service) == ()
        wait(service, 1)
        assert why(service) == ("pods-unreported",)
        assert service.fits(pod("b", "2"), "n1") == ["n1"]

    def test_a_report_that_confirms_the_pod_ends_it(self) -> None:
        service = cluster()
        record, node = service.put(running("a")), kubelet()
        wait(service, GRACE_S)
        assert node.admit_view(record.view(node)).admitted
        service.report(exact(node, "2"))
        service.ledger.tick()
        assert why(service) == ()

    def test_pods_that_have_not_started_or_are_leaving_do_not_count(self) -> None:
        service = cluster()
        service.put(running("a", phase="Pending"))
        service.put(running("b", deletionTimestamp="2027-01-15T08:01:00Z"))
        wait(service, 2 * GRACE_S)
        assert why(service) == ()

    def test_amounts_without_a_fingerprint_contradict_nothing(self) -> None:
        service = Service(exporters=ExporterSettings())
        service.report(counts("n1", "8"))
        service.put(running("a"))
        wait(service, 2 * GRACE_S)
        assert why(service) == ()
        service.report(counts("n1", "8", included=["other"]))
        service.ledger.tick()
        assert why(service) == ("pods-unreported",)

    def test_the_start_up_taint_is_removed_all_the_same(self) -> None:
        service = cluster()
        service.put(running("a"))
        wait(service, GRACE_S)
        assert service.ledger.reports.is_confirmed("n1")
