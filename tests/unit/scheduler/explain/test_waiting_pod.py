"""Pods in the way of a waiting pod have resources on its nearest NUMA node, reported or predicted."""

from __future__ import annotations

import msgspec

from scheduling import Service, configuration, counts, exact, kubelet, machine, pod, topology_of
from topowise import pods
from topowise_scheduler.explain.waiting import WaitingPod, waiting_pod
from topowise_scheduler.kubelet import Device, DevicePlugin, Kubelet


def wait(service: Service, cpu: str) -> WaitingPod:
    return waiting_pod(service.view, service.put(pod("waits", cpu)))


def admitted(node: Kubelet, *names: str) -> Kubelet:
    for name in names:
        node.admit(pods.decode(msgspec.json.encode(pod(name))))
    return node


def test_pods_in_the_way_are_named_before_and_after_their_report() -> None:
    """The first NUMA node has three allocatable CPUs, the second four; each pod has two CPUs."""
    names = ("a", "b")
    service = Service("TightFit")
    service.report(exact(kubelet()))
    for name in names:
        service.put(pod(name, node="n1"))
    before = wait(service, "4")
    service.report(exact(admitted(kubelet(), *names), version="2"))
    after = wait(service, "4")
    assert before.in_the_way == after.in_the_way == ("default/b",)


def test_the_nearest_of_many_nodes_is_named() -> None:
    """n30 lacks a CPU, the 30 nodes before it in the alphabet lack three."""
    service = Service("TightFit")
    for number in range(31):
        service.report(counts(f"n{number:02}", "4" if number == 30 else "1", included=()))
    seen = waiting_pod(service.view, service.put(pod("waits", "5")))
    assert (seen.nearest, seen.counts) == ("n30", {"not now": 31})


def test_a_numa_node_without_the_resource_is_not_the_nearest() -> None:
    """NUMA node 0 has CPUs and no GPU at all; NUMA node 1 has the GPU, and a CPU too few."""
    gpu = "nvidia.com/gpu"
    hardware = msgspec.structs.replace(machine(4), devices=(DevicePlugin(gpu, (Device("g", (1,)),)),))
    node, service = Kubelet(hardware, configuration()), Service("TightFit")
    for name, cpu in (("a", "3"), ("b", "4")):
        document = pod(name, cpu, node="n1", phase="Running")
        service.put(document)
        assert node.admit(pods.decode(msgspec.json.encode(document))).admitted
    service.report(topology_of(hardware, configuration(), node))
    document = pod("waits", "2")
    for amounts in document["spec"]["containers"][0]["resources"].values():
        amounts[gpu] = "1"
    seen = waiting_pod(service.view, service.put(document))
    assert seen.numa == 1
    assert "node 1 has only cpu 0" in seen.lack
