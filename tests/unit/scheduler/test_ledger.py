"""The ledger books what a report cannot know yet, and only that."""

from typing import Any

import msgspec

from topowise import fingerprint, nrt, pods
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.engine import fit


def report(
    available: str, *included: str, method: str = "with-exclusive-resources", print_: str | None = None
) -> nrt.NodeResourceTopology:
    digest = fingerprint.of(("default", name) for name in included) if print_ is None else print_
    named = {
        "topologyManagerPolicy": "single-numa-node",
        "nodeTopologyPodsFingerprint": digest,
        "nodeTopologyPodsFingerprintMethod": method,
    }
    cpu = {"name": "cpu", "capacity": "8", "allocatable": "8", "available": available}
    document = {
        "metadata": {"name": "n1"},
        "attributes": [{"name": name, "value": value} for name, value in named.items() if value],
        "zones": [{"name": "node-0", "type": "Node", "resources": [cpu]}],
    }
    return nrt.decode(msgspec.json.encode(document))


def pod(name: str, cpu: str, node: str = "n1", **status: Any) -> pods.Pod:
    amounts = {"cpu": cpu, "memory": "1Gi"}
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": amounts}}]},
        "status": status,
    }
    return pods.decode(msgspec.json.encode(document))


def free(ledger: Ledger) -> int:
    topology = ledger.topology_of("n1")
    assert topology is not None
    return topology.zones[0].available["cpu"]


def ledger_with(*reports: nrt.NodeResourceTopology) -> Ledger:
    ledger = Ledger(fit.judge)
    for one in reports:
        ledger.put_topology(one)
    return ledger


def test_a_pod_is_booked_from_its_assignment_until_a_report_includes_it() -> None:
    ledger = ledger_with(report("8"))
    ledger.put_pod(pod("a", "3"))
    assert free(ledger) == 5000
    ledger.put_topology(report("5", "a"))
    assert free(ledger) == 5000


def test_a_report_that_came_before_the_pods_event_is_recognised() -> None:
    ledger = ledger_with(report("5", "a"))
    ledger.put_pod(pod("a", "3"))
    assert free(ledger) == 5000


def test_a_report_that_knows_one_of_two_pods_leaves_both_booked_until_it_knows_both() -> None:
    ledger = ledger_with(report("8"))
    ledger.put_pod(pod("a", "3"))
    ledger.put_topology(report("5", "a"))
    ledger.put_pod(pod("b", "2"))
    assert free(ledger) == 3000
    ledger.put_topology(report("3", "a", "b"))
    assert free(ledger) == 3000


def test_a_pod_that_ends_before_it_is_reported_is_no_longer_booked() -> None:
    ledger = ledger_with(report("8"))
    ledger.put_pod(pod("a", "3"))
    ledger.put_pod(pod("a", "3", phase="Failed"))
    assert free(ledger) == 8000


def test_a_deleted_pod_that_was_reported_stays_in_the_reports_numbers_until_the_next() -> None:
    ledger = ledger_with(report("5", "a"))
    ledger.put_pod(pod("a", "3"))
    ledger.drop_pod("uid-a")
    assert free(ledger) == 5000
    ledger.put_topology(report("8"))
    assert free(ledger) == 8000


def test_a_pod_the_kubelet_would_refuse_is_booked_nowhere() -> None:
    ledger = ledger_with(report("2"))
    ledger.put_pod(pod("a", "3"))
    assert free(ledger) == 2000


def test_method_all_counts_pods_that_hold_nothing() -> None:
    ledger = ledger_with(report("8", method="all"))
    ledger.put_pod(pod("shared", "500m"))
    ledger.put_pod(pod("a", "3"))
    ledger.put_topology(report("5", "a", "shared", method="all"))
    assert free(ledger) == 5000


def test_without_a_fingerprint_the_next_report_is_believed() -> None:
    ledger = ledger_with(report("8", print_=""))
    ledger.put_pod(pod("a", "3"))
    assert free(ledger) == 5000
    ledger.put_topology(report("5", print_=""))
    assert free(ledger) == 5000


def test_without_a_fingerprint_pods_that_ran_before_us_are_in_the_report() -> None:
    ledger = ledger_with(report("4", print_=""))
    ledger.put_pod(pod("a", "4"), is_news=False)
    assert free(ledger) == 4000


def test_without_a_fingerprint_the_same_report_listed_again_confirms_nothing() -> None:
    old = report("8", print_="")
    old = msgspec.structs.replace(old, metadata=msgspec.structs.replace(old.metadata, resourceVersion="7"))
    ledger = ledger_with(old)
    ledger.put_pod(pod("a", "3"))
    ledger.put_topology(old)
    assert free(ledger) == 5000


def test_pods_seen_before_the_first_report_are_kept_for_it() -> None:
    ledger = Ledger(fit.judge)
    ledger.put_pod(pod("a", "3"))
    assert ledger.topology_of("n1") is None
    ledger.put_topology(report("8"))
    assert free(ledger) == 5000
    ledger.drop_topology("n1")
    assert ledger.topology_of("n1") is None
    assert ledger.nodes() == []


def test_a_pod_recreated_under_the_same_name_is_another_pod() -> None:
    ledger = ledger_with(report("8"))
    ledger.put_pod(pod("a", "3"))
    ledger.drop_pod("uid-a")
    again = msgspec.structs.replace(pod("a", "2"), metadata=pods.Metadata("a", "default", "uid-a2"))
    ledger.put_pod(again)
    assert free(ledger) == 6000


def test_every_change_moves_the_revision() -> None:
    ledger = ledger_with(report("8"))
    before = ledger.revision
    ledger.put_pod(pod("a", "3"))
    ledger.put_pod(pod("a", "3"))
    assert ledger.revision == before + 1
