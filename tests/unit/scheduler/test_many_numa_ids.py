"""Machines with dozens of NUMA nodes through the whole product: exporter, object, model, engine, picture.

GPUs with memory present it as NUMA nodes without CPUs. GH200 and GB200 have 8 NUMA nodes for each GPU: a NUMA node
has the memory and 7 are for partitions. The GPU's `numa_node` may be such a node.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduling import GIB, Service, decoded, pod, topology_of
from topowise import nrt
from topowise_scheduler import report
from topowise_scheduler.explain import picture
from topowise_scheduler.kubelet import (
    Core,
    Device,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    Machine,
    MemoryReservation,
    NumaNode,
)
from topowise_scheduler.verdicts import kube_scheduler

GPU = "nvidia.com/gpu"


def grace(memory: int = 186) -> Machine:
    """Two processors, four GPUs, 34 NUMA nodes; CPU 0 and a GiB are the system's."""
    rows = [[10 if row == column else 40 if max(row, column) < 2 else 80 for column in range(34)] for row in range(34)]
    nodes = [
        NumaNode(at, 480 * GIB, tuple(Core(at, (cpu,)) for cpu in range(72 * at, 72 * at + 72)), {}, tuple(rows[at]))
        for at in range(2)
    ]
    nodes += [NumaNode(at, memory * GIB * (at % 8 == 2), (), {}, tuple(rows[at])) for at in range(2, 34)]
    gpus = tuple(Device(f"gpu-{number}", (2 + 8 * number,)) for number in range(4))
    return Machine(numa=tuple(nodes), devices=(DevicePlugin(GPU, gpus),))


def config(policy: str, memory: str = "Static") -> KubeletConfiguration:
    return KubeletConfiguration(
        topologyManagerPolicy=policy,
        topologyManagerPolicyOptions={} if policy == "none" else {"max-allowable-numa-nodes": "64"},
        cpuManagerPolicy="static",
        reservedSystemCPUs="0",
        memoryManagerPolicy=memory,
        reservedMemory=(MemoryReservation(0, {"memory": "1Gi"}),) if memory == "Static" else (),
        systemReserved={"memory": "1Gi"},
        evictionHard={},
    )


def with_gpu(name: str) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "32Gi", GPU: "1"}
    return pod(name, containers=[{"name": "c", "resources": {"requests": amounts, "limits": amounts}}])


def published(machine: Machine, settings: KubeletConfiguration, *residents: dict[str, Any]) -> nrt.NodeResourceTopology:
    kubelet = Kubelet(machine, settings)
    for resident in residents:
        assert kubelet.admit(decoded(resident)).admitted
    return topology_of(machine, settings, kubelet)


@pytest.mark.parametrize("memory", ["None", "Static"])
@pytest.mark.parametrize(
    ("policy", "gpu", "cpus"),
    [("none", "", ""), ("best-effort", "", ""), ("restricted", "no room", ""), ("single-numa-node", "no room", "")],
)
def test_a_gpu_on_a_node_of_its_own_is_aligned_with_no_cpu(policy: str, gpu: str, cpus: str, memory: str) -> None:
    """Hints for the GPU and hints for CPUs do not overlap, so only a policy that admits everything admits the pod."""
    service = Service()
    service.report(published(grace(), config(policy, memory)))
    refusals = [
        service.answers.verdicts(service.question(document, "n1")).refusal(0)
        for document in (with_gpu("a"), pod("b", "8"))
    ]
    assert [bool(text) for text in refusals] == [bool(gpu), bool(cpus)]


@pytest.mark.parametrize("policy", ["best-effort", "restricted", "single-numa-node"])
def test_devices_near_nodes_that_have_nothing_else_are_read_exactly(policy: str) -> None:
    """Without a memory manager a report has only the devices of such a NUMA node."""
    node_report = report.read(published(grace(), config(policy, "None"), pod("a", "8")))
    assert (node_report.precision, node_report.problems) == ("exact", ())
    assert {2, 10, 18, 26} <= set(node_report.empty.node_ids)


def test_memory_of_a_pod_over_all_nodes_is_read_back_exactly() -> None:
    """A hint without preference is the mask of all NUMA nodes, including NUMA nodes without resources."""
    topology = published(grace(), config("best-effort"), with_gpu("a"))
    node_report = report.read(topology)
    assert (node_report.precision, node_report.problems) == ("exact", ())
    kubelet = report.kubelet_of(node_report, lambda _name: None)
    assert kubelet.memory is not None
    assert set(kubelet.memory.tables.cells) == {(1 << 8) - 1}
    service = Service()
    service.report(topology)
    (explanation,) = service.view.explanations(msgspec.convert(pod("b", "4", "8Gi"), kube_scheduler.Pod), ["n1"])
    assert "violates NUMA node allocation" in explanation.text


@pytest.mark.parametrize(("policy", "memory"), [("none", "None"), ("best-effort", "None"), ("best-effort", "Static")])
def test_nodes_with_nothing_are_counted_and_not_drawn(policy: str, memory: str) -> None:
    machine = grace()
    drawn = picture.read(Kubelet(machine, config(policy, memory)), {}, node="n1", machine=machine)
    assert [zone.id for zone in drawn.zones] == [0, 1, 2, 10, 18, 26]
    assert [zone.memory[0].total // GIB for zone in drawn.zones] == [480, 480, 186, 186, 186, 186]
    assert len(drawn.bare) == 28
    assert drawn.distances is not None
    assert drawn.distances[0] == (10, 40, 80, 80, 80, 80)
    assert "34 NUMA nodes, 28 of them with nothing (not drawn)" in picture.terminal(drawn, width=120)


def test_64_ids_from_the_exporter_to_the_picture() -> None:
    rows = [tuple(10 if row == column else 20 for column in range(64)) for row in range(64)]
    cores = [tuple(Core(at // 32, (2 * at + cpu,)) for cpu in range(2)) for at in range(64)]
    machine = Machine(numa=tuple(NumaNode(at, 8 * GIB, cores[at], {}, rows[at]) for at in range(64)))
    topology = published(machine, config("none", "None"), pod("a", "3"))
    assert len(topology.zones or ()) == 64
    node_report = report.read(topology)
    assert (node_report.precision, node_report.problems, len(node_report.empty.node_ids)) == ("exact", (), 64)
    service = Service("LeastNUMANodes")
    service.report(topology)
    question = service.question(pod("b", "120"), "n1")
    assert service.answers.verdicts(question).refusal(0) is None
    assert service.answers.scores(question).tolist() == [0]
    assert service.answers.verdicts(service.question(pod("c", "126"), "n1")).refusal(0)
    (explanation,) = service.view.explanations(msgspec.convert(pod("b", "120"), kube_scheduler.Pod), ["n1"])
    assert explanation.verdict == "fits"
    drawn = picture.read(report.kubelet_of(node_report, lambda _name: None), {}, node="n1", machine=machine)
    assert ([zone.id for zone in drawn.zones], drawn.bare) == (list(range(64)), ())
    assert "NUMA node 63" in picture.terminal(drawn, width=100)
    assert "NUMA node 63" in picture.svg(drawn)
