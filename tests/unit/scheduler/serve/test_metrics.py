"""What is counted of nodes: alerts compare these numbers."""

from __future__ import annotations

from scheduling import Service, counts, exact, kubelet
from topowise_scheduler.serve import metrics


def test_a_report_without_a_node_does_not_make_up_for_a_node_without_a_report() -> None:
    """As NFD leaves them behind: its objects belong to its namespace and not to their nodes."""
    service = Service()
    for name in ("reported", "unreported"):
        service.ledger.reports.put_node(name)
    for name in ("reported", "gone"):
        service.report(exact(kubelet(), name=name))
    registry = metrics.registry(service.ledger, service.answers)
    numbers = [registry.get_sample_value(f"topowise_scheduler_{metric}") for metric in ("nodes", "reported_nodes")]
    assert numbers == [2, 1]


def test_nodes_by_counts_are_counted_although_their_reports_never_change() -> None:
    service = Service()
    for name in ("exact", "counts", "unreported"):
        service.ledger.reports.put_node(name)
    service.report(exact(kubelet(), name="exact"))
    service.report(counts("counts", ("8", "8")))
    service.report(counts("gone", ("8", "8")))
    registry = metrics.registry(service.ledger, service.answers)
    assert registry.get_sample_value("topowise_scheduler_nodes_by_counts") == 1


def test_unconfirmed_nodes_are_counted_by_cause_and_new_nodes_until_their_report() -> None:
    service = Service()
    for name in ("n1", "n2"):
        service.join(name, age=9000)
        service.report(exact(kubelet(), name=name))
    service.put_exporter("n1")
    service.put_exporter("n2", ready=False)
    service.join("n3")
    service.ledger.tick()
    service.clock.now += 121
    service.join("n4")
    registry = metrics.registry(service.ledger, service.answers)
    assert registry.get_sample_value("topowise_scheduler_new_nodes") == 2
    service.ledger.tick()
    service.report(exact(kubelet(), name="n4"))
    named = "topowise_scheduler_unconfirmed_nodes_by_cause"
    assert registry.get_sample_value(named, {"cause": "exporter-down"}) == 1
    assert registry.get_sample_value(named, {"cause": "kubelet"}) == 0
    assert registry.get_sample_value("topowise_scheduler_new_nodes") == 0
