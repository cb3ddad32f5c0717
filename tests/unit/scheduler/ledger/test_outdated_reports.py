"""A report that is outdated because its exporter is gone or hangs: shown, and no pod is placed on top of another.

An exporter that has not been ready for 120 s is gone, and so is a report that lacks a pod for 120 s.
"""

from __future__ import annotations

from scheduling import Service, pod
from stories import table, tell
from topowise_scheduler.ledger.pods.exporter_pods import ExporterSettings

CLUSTER = "join age=9000; exporter; exact; tick"
GRACE = "wait 30; wait 30; wait 30; wait 30"
GONE = f"{CLUSTER}; exporter no; tick; {GRACE}"
"""The exporter has not been ready for the whole grace."""


def story_of(text: str) -> Service:
    named = {"CLUSTER": CLUSTER, "GRACE": GRACE, "GONE": GONE}
    steps = [named.get(step.strip(), step) for step in text.split(";")]
    return tell("; ".join(steps), Service(exporters=ExporterSettings()))


@table("""
two pods are not bound one on top of the other
    CLUSTER; exporter gone; tick; GRACE; why exporter-down; pod a 2; pod b 2; assume a 2; fits 2 not n1
    assume b 2 why=EXPORTER_DOWN; running a 2; GRACE; why exporter-down pods-unreported; fits 2 not n1
the node is open again after the end of the pod
    GONE; running a 2; fits 2 not n1; end a; fits 2 n1
the node is open again after the report
    GONE; running c 2; fits 2 not n1; exact c:2; fits 2 n1
an update of the DaemonSet closes nothing
    CLUSTER; exporter gone; wait 60; exporter no; wait 40; running a 2; fits 2 n1; why -; end a; exporter; tick
    exporter gone; wait 60; exporter no; wait 40; running a 2; fits 2 n1; why -; end a; exporter; tick
    exporter gone; wait 60; exporter no; wait 40; running a 2; fits 2 n1; why -
pods without exclusive resources do not count
    GONE; shared a; fits 2 n1
a node that becomes ready is retried
    GONE; improved any; exporter; tick; improved n1; why -
a node that is not ready is not examined and has the whole grace afterwards
    CLUSTER; join age=9000 ready=no; exporter no; running a 2; GRACE; GRACE; GRACE; why -
    join age=9000; tick; why pods-unreported; GRACE; why exporter-down pods-unreported
a deleted object is a change
    CLUSTER; mark; lose; why object-deleted; changed
""")
def test_an_exporter_that_is_gone(story: str) -> None:
    story_of(story)


def test_the_sum_of_nodes_without_exporter_is_counted_by_cause() -> None:
    assert story_of("GONE").ledger.gates.unconfirmed.causes() == {"exporter-down": 1}


def test_pods_without_exclusive_resources_do_not_wait() -> None:
    service = story_of("GONE; running c 2")
    burstable = pod("a")
    burstable["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    assert service.fits(burstable, "n1") == ["n1"]


def test_a_node_that_is_gone_is_forgotten() -> None:
    service = story_of("GONE; exporter gone; gone; mark; lose; tick; changed; unconfirmed 0")
    assert not service.ledger.exporters.is_known
    assert list(service.ledger.node_states.changed_since(0)) == []


def test_an_exporter_that_was_gone_before_the_service_is_missed_by_the_boot_id() -> None:
    # Another exporter reports n3.
    nodes = "join on=n1 age=9000; join on=n2 age=9000; join on=n3 age=9000; exporter on=n2"
    story_of(f"{nodes}; exact boot-id=first; counts 8 of=- on=n3; tick; GRACE; why exporter-down; why - on=n3")


@table("""
it is unconfirmed and stays open
    CLUSTER; running a 2; wait 60; wait 59; why -; wait 1; why pods-unreported; fits 2 n1
a report that confirms the pod ends it
    CLUSTER; running a 2; GRACE; why pods-unreported; exact a:2; tick; why -
pods that have not started or are leaving do not count
    CLUSTER; running a 2 phase=Pending; running b 2 deletionTimestamp=2027-01-15T08:01:00Z; GRACE; GRACE; why -
amounts without a fingerprint contradict nothing
    counts 8; running a 2; GRACE; GRACE; why -; counts 8 of=other; tick; why pods-unreported
""")
def test_a_report_that_lacks_a_pod(story: str) -> None:
    story_of(story)


def test_the_start_up_taint_is_removed_although_the_report_lacks_a_pod() -> None:
    assert story_of("CLUSTER; running a 2; GRACE").ledger.reports.is_confirmed("n1")
