"""A node whose kubelet would panic gets no pod that makes it panic, and metric and explanation say so."""

from __future__ import annotations

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import GIB, Service, configuration, container, machine, pod
from topowise import attributes, nrt, pods
from topowise_scheduler.kubelet import Core, Kubelet, KubeletConfiguration, Machine
from topowise_scheduler.serve import metrics
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.refusals import Refusal

CLOSEST = {"prefer-closest-numa-nodes": "true"}


def published(on: Machine, config: KubeletConfiguration) -> nrt.NodeResourceTopology:
    """Returns what the exporter publishes of a node."""
    topology = exported(on, config, Kubelet(on, config))
    return msgspec.structs.replace(topology, metadata=nrt.Metadata("n1", resourceVersion="1"))


def with_gap() -> Machine:
    """NUMA nodes 0 and 2, with the rows of distances that Linux prints."""
    first, second = machine().numa
    return Machine(numa=(first, msgspec.structs.replace(second, id=2)))


def without_pages() -> Machine:
    """NUMA node 1 has no page sizes, as a node without memory before Linux 6.1."""
    first, second = machine().numa
    return Machine(numa=(msgspec.structs.replace(first, hugepages={2048: 512}), second))


def hazards(service: Service) -> dict[str, float]:
    families = {family.name: family for family in metrics.Counts(service.ledger, service.answers).collect()}
    samples = families["topowise_scheduler_kubelet_hazards"].samples
    return {sample.labels["hazard"]: sample.value for sample in samples if sample.value}


@pytest.mark.parametrize("policy", ["restricted", "best-effort"])
def test_distances_of_a_machine_whose_numa_ids_have_gaps(policy: str) -> None:
    service = Service()
    service.report(published(with_gap(), configuration(topologyManagerPolicy=policy)))
    assert service.answers.verdicts(service.question(pod("a"), "n1")).refusal(0) is None
    assert hazards(service) == {}
    options = configuration(topologyManagerPolicy=policy, topologyManagerPolicyOptions=CLOSEST)
    service.report(published(with_gap(), options))
    assert service.answers.verdicts(service.question(pod("a"), "n1")).refusal(0) == Refusal.WOULD_PANIC
    assert hazards(service) == {"distances": 1}
    (shown,) = service.view.explanations(msgspec.convert(pod("a"), kube_scheduler.Pod), ["n1"])
    assert (shown.verdict, shown.reason, shown.precision) == ("never", "KubeletWouldPanic", "exact")
    assert "they have no entry for NUMA id 2, as the ids of this machine have gaps" in shown.text
    # With every CPU of NUMA node 2 in use there is nothing to compare, and the pod fits.
    fits = service.answers.verdicts(service.question(pod("wide", "4"), "n1")).refusal(0)
    assert fits is None


def test_a_page_size_that_a_numa_node_lacks() -> None:
    service = Service()
    service.report(published(without_pages(), configuration(topologyManagerPolicy="restricted")))
    amounts = {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "2Mi"}
    asking = pod("a", containers=[container(amounts)])
    assert service.answers.verdicts(service.question(asking, "n1")).refusal(0) == Refusal.WOULD_PANIC
    assert service.answers.verdicts(service.question(pod("b"), "n1")).refusal(0) is None
    assert hazards(service) == {"page-sizes": 1}
    (shown,) = service.view.explanations(msgspec.convert(asking, kube_scheduler.Pod), ["n1"])
    assert "hugepages-2Mi on every NUMA node, and NUMA node 1 does not have it" in shown.text


def test_cpus_that_two_pods_may_get() -> None:
    """A sibling is offline: the core of CPUs 0 and 4 is above the average, and is taken although CPU 0 is busy."""
    first = machine().numa[0]
    cores = (Core(0, (0, 4)), Core(0, (1, 5)), Core(0, (2, 6)), Core(0, (3,)))
    lacking = Machine(numa=(msgspec.structs.replace(first, cores=cores, distances=(10,)),))
    config = configuration(topologyManagerPolicy="restricted", reservedSystemCPUs="3")
    kubelet = Kubelet(lacking, config)
    assert kubelet.admit(msgspec.convert(pod("p1", "1"), pods.Pod)).admitted
    topology = exported(lacking, config, kubelet, lambda _: ("default", "p1"))
    service = Service()
    service.report(msgspec.structs.replace(topology, metadata=nrt.Metadata("n1", resourceVersion="1")))
    assert hazards(service) == {"shared-cpus": 1}
    texts = [
        service.view.explanations(msgspec.convert(pod("p2", cpu), kube_scheduler.Pod), ["n1"])[0].text
        for cpu in ("2", "1", "100m")
    ]
    possible = "; its cores or sockets have different numbers of CPUs, so a CPU may belong to two pods"
    assert [possible in text for text in texts] == [True, True, False]
    shared = f"{possible}; CPU 0 of them is reserved or another pod's too"
    assert [shared in text for text in texts] == [True, False, False]


def test_even_cores_and_unknown_cores_share_no_cpus() -> None:
    service = Service()
    service.report(published(machine(), configuration(topologyManagerPolicy="restricted")))
    assert hazards(service) == {}
    zones = [
        {
            "name": f"node-{number}",
            "type": "Node",
            "resources": [{"name": "cpu", "capacity": cpus, "allocatable": cpus, "available": cpus}],
        }
        for number, cpus in enumerate(("8", "6"))
    ]
    document = {"metadata": {"name": "n1"}, "topologyPolicies": ["SingleNUMANodeContainerLevel"], "zones": zones}
    service.report(nrt.decode(msgspec.json.encode(document)))
    assert hazards(service) == {}
    (explanation,) = service.view.explanations(msgspec.convert(pod("p"), kube_scheduler.Pod), ["n1"])
    assert "may belong to two pods" not in explanation.text


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({0: {"node-0": 10, "node-2": 20}, 2: {"node-0": 20, "node-2": 10}}, {"distances": 1}),
        # The machine has NUMA node 1, of which the producer makes no zone.
        ({0: {"node-0": 10, "node-1": 15, "node-2": 20}, 2: {"node-0": 20, "node-1": 15, "node-2": 10}}, {}),
    ],
    ids=["a gap", "a zone that is left out"],
)
def test_a_report_of_counts_with_the_option(rows: dict[int, dict[str, int]], expected: dict[str, int]) -> None:
    """As RTE writes it: options as attributes, costs by the names of zones, and no configuration."""
    zones = [
        {
            "name": f"node-{numa_id}",
            "type": "Node",
            "costs": [{"name": name, "value": value} for name, value in row.items()],
            "resources": [
                {"name": name, "capacity": amount, "allocatable": amount, "available": amount}
                for name, amount in (("cpu", "8"), ("memory", str(8 * GIB)))
            ],
        }
        for numa_id, row in rows.items()
    ]
    named = {
        "topologyManagerPolicy": "restricted",
        "topologyManagerScope": "container",
        attributes.option_name("prefer-closest-numa-nodes"): "true",
    }
    listed = [{"name": name, "value": value} for name, value in named.items()]
    service = Service()
    document = {"metadata": {"name": "n1"}, "attributes": listed, "zones": zones}
    service.report(nrt.decode(msgspec.json.encode(document)))
    assert hazards(service) == expected
    said = Refusal.WOULD_PANIC if expected else None
    assert service.answers.verdicts(service.question(pod("a"), "n1")).refusal(0) == said
