"""The kubelet version of a node becomes known or changes in place, before and after its report and its pods."""

from __future__ import annotations

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import Service, configuration, container, decoded, exact, kubelet, machine, pod
from topowise import nrt
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.versions import version_of
from topowise_scheduler.serve import metrics
from topowise_scheduler.verdicts import kube_scheduler


def sidecar_pod(name: str, node: str = "") -> dict[str, object]:
    """A sidecar with 2 CPUs before a container with 2: a kubelet 1.28 gives the sidecar's CPUs to the container."""
    sidecar = container({"cpu": "2", "memory": "1Gi"}, "s", restartPolicy="Always")
    return pod(name, "2", node=node, initContainers=[sidecar])


@pytest.mark.parametrize("node_first", [True, False])
def test_node_and_report_in_either_order(node_first: bool) -> None:
    service = Service()
    if node_first:
        service.ledger.reports.put_kubelet("n1", "v1.33.1")
        service.report(exact(kubelet()))
    else:
        service.report(exact(kubelet()))
        service.ledger.reports.put_kubelet("n1", "v1.33.1")
    assert service.node().settings.behaviour == version_of("v1.33.1").behaviour


def test_an_upgrade_in_place_judges_bookings_anew() -> None:
    service = Service()
    service.ledger.reports.put_kubelet("n1", "v1.28.15")
    config = configuration(featureGates={"SidecarContainers": True})
    topology = exported(machine(), config, Kubelet(machine(), config))
    service.report(msgspec.structs.replace(topology, metadata=nrt.Metadata("n1", resourceVersion="1")))
    service.put(sidecar_pod("a", node="n1"))
    node_state = service.state()
    before = node_state.kubelet.cpu.available.bit_count()
    assert (node_state.is_placed("uid-a"), before) == (True, 5)
    changes = service.ledger.node_states.changes
    service.ledger.reports.put_kubelet("n1", "v1.29.14")
    assert node_state.kubelet.cpu.available.bit_count() == before - 2
    assert (node_state.is_placed("uid-a"), service.ledger.node_states.changes) == (True, changes + 1)
    service.ledger.reports.put_kubelet("n1", "v1.29.15")
    assert service.ledger.node_states.changes == changes + 1


def test_a_node_that_came_back_is_not_what_it_was() -> None:
    service = Service()
    service.ledger.reports.put_kubelet("n1", "v1.28.15")
    service.ledger.reports.drop_node("n1")
    service.report(exact(kubelet()))
    assert service.node().settings.behaviour == version_of("v1.36.2").behaviour


def test_metric_and_explanation_name_a_newer_kubelet() -> None:
    service = Service()
    service.report(exact(kubelet()))
    service.ledger.reports.put_kubelet("n1", "v1.41.0")
    families = {family.name: family for family in metrics.Counts(service.ledger, service.answers).collect()}
    (sample,) = families["topowise_scheduler_kubelets"].samples
    assert (sample.labels, sample.value) == ({"kubelet": "1.38", "certainty": "assumed"}, 1)
    (shown,) = service.view.explanations(msgspec.convert(pod("a", "2"), kube_scheduler.Pod), ["n1"])
    assert (shown.precision, shown.kubelet) == ("exact", "1.38?")
    assert shown.text.endswith("kubelet 1.41 is newer than the proven versions (1.28 to 1.36); predicted as 1.38")


def holding(name: str) -> Kubelet:
    """The truth about a node with one pod."""
    truth = kubelet()
    assert truth.admit(decoded(pod(name, "4"))).admitted
    return truth


def ended(name: str) -> dict[str, object]:
    return pod(name, "4", node="n1", phase="Succeeded")


@pytest.mark.parametrize(
    ("version", "free"),
    # From 1.34 a kubelet lists active pods only: a pod listed long after its end still has its resources.
    [("v1.33.5", [3, 4]), ("v1.28.15", [3, 4]), ("v1.34.0", [3, 0]), ("v1.36.2", [3, 0])],
)
def test_a_kubelet_that_lists_pods_that_have_ended(version: str, free: list[int]) -> None:
    service = Service()
    service.ledger.reports.put_kubelet("n1", version)
    truth = holding("a")
    service.report(exact(truth))
    service.put(pod("a", "4", node="n1"))
    assert service.free("n1") == [3, 0]
    service.put(ended("a"))
    assert service.free("n1") == [3, 4]
    service.wait(121)
    assert service.free("n1") == free
    service.report(exact(truth, "2"))
    assert service.free("n1") == free


def test_pods_ended_before_the_start_have_no_resources_until_deleted() -> None:
    for report_first in (True, False):
        service = Service()
        service.ledger.reports.put_kubelet("n1", "v1.33.5")
        truth = holding("a")
        if report_first:
            service.report(exact(truth))
        service.put(ended("a"))
        if not report_first:
            service.report(exact(truth))
        assert service.free("n1") == [3, 4]
        service.ledger.drop_pod("uid-a")
        # A pod deleted by force stays listed while a container of the pod runs.
        service.report(exact(truth, "2"))
        assert service.free("n1") == [3, 0]


def test_nothing_is_kept_of_pods_that_have_ended_and_are_deleted() -> None:
    service = Service()
    for number in range(3):
        service.put(pod(f"p{number}", "4", node="n1", phase="Succeeded"))
    assert service.ledger.node_states.of("n1") is not None
    for number in range(3):
        service.ledger.drop_pod(f"uid-p{number}")
    assert service.ledger.node_states.of("n1") is None


@pytest.mark.parametrize("node_first", [True, False])
def test_page_sizes_of_the_node_object_are_known_with_any_exporter(node_first: bool) -> None:
    """A Guaranteed pod that requests 0 pages: a kubelet that does not know the page size panics."""
    service = Service()
    document = {
        "metadata": {"name": "n1"},
        "status": {"allocatable": {"cpu": "8", "hugepages-2Mi": "0", "hugepages-1Gi": "0", "memory": "8Gi"}},
    }
    node = service.nodes.decode(msgspec.json.encode(document))
    assert node.page_sizes == ("hugepages-1Gi", "hugepages-2Mi")
    zone = {"name": "node-0", "type": "Node", "resources": [
        {"name": name, "capacity": amount, "allocatable": amount, "available": amount}
        for name, amount in (("cpu", "8"), ("memory", "8Gi"))
    ]}  # fmt: skip
    topology = {"metadata": {"name": "n1"}, "topologyPolicies": ["SingleNumaNode"], "zones": [zone]}
    amounts = {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "0"}
    hugepages_pod = pod("a", containers=[container(amounts)])
    if node_first:
        service.ledger.reports.put_kubelet("n1", node.kubelet_version, node.page_sizes)
    service.report(nrt.decode(msgspec.json.encode(topology)))
    if not node_first:
        assert service.answers.verdicts(service.question(hugepages_pod, "n1")).refusal(0)
        service.ledger.reports.put_kubelet("n1", node.kubelet_version, node.page_sizes)
    assert service.answers.verdicts(service.question(hugepages_pod, "n1")).refusal(0) is None
