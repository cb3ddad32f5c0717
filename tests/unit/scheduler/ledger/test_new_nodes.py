"""A node that an exporter is to report soon takes no pod to align before its first report, for a limited time."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling import Service, exact, kubelet, pod
from stories import table, tell
from topowise_scheduler.ledger.pods.exporter_pods import ExporterSettings
from topowise_scheduler.verdicts.refusals import Refusal


def cluster(**options: Any) -> Service:
    """Returns a service with an old node, n1, whose exporter runs."""
    return tell("join age=9000; exporter; exact", Service(exporters=ExporterSettings(**options)))


def test_a_pod_to_align_waits_for_the_first_report_of_a_node() -> None:
    service = tell("join on=n2; fits 2 n1 not n2", cluster())
    assert service.ledger.gates.all(service.put(pod("a", "2")), "n2") == Refusal.NEW_NODE
    assert len(service.ledger.gates.new_nodes) == 1
    service.report(exact(kubelet(), "1", "n2"))
    assert service.fits(pod("a", "2"), "n1", "n2") == ["n1", "n2"]
    assert len(service.ledger.gates.new_nodes) == 0


@pytest.mark.parametrize(
    ("resources", "fits"),
    [({"requests": {"cpu": "1"}}, ["n2"]), ({"limits": {"example.com/gpu": "1"}}, [])],
    ids=["shared CPUs", "devices"],
)
def test_pods_with_nothing_to_align_do_not_wait(resources: dict[str, Any], fits: list[str]) -> None:
    service = tell("join on=n2", cluster())
    burstable = pod("b")
    burstable["spec"]["containers"][0]["resources"] = resources
    assert service.fits(burstable, "n2") == fits


@table("""
after a restart of the service the creation time counts
    join on=old age=120; join on=unknown age=-; fits 2 old unknown
a node that is made anew waits again
    join on=n2 age=500; gone on=n2; join on=n2; fits 2 not n2
""")
def test_a_node_waits_for_a_limited_time_after_its_creation(story: str) -> None:
    tell(story, cluster())


@table("""
the wait ends without a report, and waiting pods are retried
    join on=n2 age=100; improved any; wait 19; fits 2 not n2; improved -; wait 1; fits 2 n2; improved n2
heartbeats do not extend the wait
    join on=n2 age=-3600; wait 120; join on=n2 age=-3600; fits 2 n2
""")
def test_the_wait_is_configured(story: str) -> None:
    tell(story, cluster(first_report_s=120))


def test_the_wait_can_be_switched_off() -> None:
    tell("join on=n2; fits 2 n2", cluster(first_report_s=0))


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


@table("""
a label may come later than the node
    join on=n2; fits 2 n2; join on=n2 numa=yes; fits 2 not n2; join on=n2; fits 2 n2
nodes that the node selector excludes do not wait
    join on=windows numa=no; join on=virtual; join on=linux numa=yes; fits 2 windows virtual not linux
a pod of the exporter counts whatever the node selector says
    join on=n2; exporter no on=n2; fits 2 not n2
""")
def test_a_node_without_the_labels_of_exporters_does_not_wait(story: str) -> None:
    tell(story, cluster(node_selector={"numa": "yes"}))


@table("""
a cluster with another exporter
    join; counts 8 of=-; join on=n2; fits 2 n1 n2
a pod with the labels in another namespace
    join on=n2; exporter on=n2 namespace=tenant; fits 2 n2
""")
def test_without_an_exporter_no_node_waits(story: str) -> None:
    tell(story, Service(exporters=ExporterSettings()))
