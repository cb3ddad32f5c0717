"""The kubelet version of a node becomes known or changes in place, before and after its report and its pods."""

from __future__ import annotations

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import Service, configuration, container, exact, kubelet, machine, pod
from stories import table, tell
from topowise import nrt
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.versions import version_of
from topowise_scheduler.serve import metrics
from topowise_scheduler.verdicts import kube_scheduler


def sidecar_pod(name: str, node: str = "") -> dict[str, object]:
    """A sidecar with 2 CPUs before a container with 2: a kubelet 1.28 gives the sidecar's CPUs to the container."""
    sidecar = container({"cpu": "2", "memory": "1Gi"}, "s", restartPolicy="Always")
    return pod(name, "2", node=node, initContainers=[sidecar])


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


@pytest.mark.parametrize(
    ("story", "version"),
    [
        ("kubelet v1.33.1; exact", "v1.33.1"),
        ("exact; kubelet v1.33.1", "v1.33.1"),
        ("kubelet v1.28.15; gone; exact", "v1.36.2"),
    ],
    ids=["before its report", "after its report", "a node that came back is not what it was"],
)
def test_the_version_of_a_node_decides_its_behaviour(story: str, version: str) -> None:
    assert tell(story).node().settings.behaviour == version_of(version).behaviour


@table("""
before 1.34 a kubelet lists pods that have ended
    kubelet v1.33.5; exact a:4; bound a 4; free 3 0; bound a 4 phase=Succeeded; free 3 4; wait 121; free 3 4
    exact a:4; free 3 4
before 1.34 a kubelet lists pods that have ended, 1.28
    kubelet v1.28.15; exact a:4; bound a 4; free 3 0; bound a 4 phase=Succeeded; free 3 4; wait 121; free 3 4
    exact a:4; free 3 4
from 1.34 a kubelet lists active pods only: a pod listed long after its end still has its resources
    kubelet v1.34.0; exact a:4; bound a 4; free 3 0; bound a 4 phase=Succeeded; free 3 4; wait 121; free 3 0
    exact a:4; free 3 0
the newest recorded version
    kubelet v1.36.2; exact a:4; bound a 4; free 3 0; bound a 4 phase=Succeeded; free 3 4; wait 121; free 3 0
    exact a:4; free 3 0
a pod that ended before the start has no resources until it is deleted
    # A pod deleted by force stays listed while a container of the pod runs.
    kubelet v1.33.5; exact a:4; bound a 4 phase=Succeeded; free 3 4; end a; exact a:4; free 3 0
a pod that ended before the start and before the first report
    kubelet v1.33.5; bound a 4 phase=Succeeded; exact a:4; free 3 4; end a; exact a:4; free 3 0
nothing is kept of pods that have ended and are deleted
    bound a 4 phase=Succeeded; bound b 4 phase=Succeeded; known; end a; end b; known no
""")
def test_pods_that_have_ended_are_listed_by_older_kubelets(story: str) -> None:
    tell(story)


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
