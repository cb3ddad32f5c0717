"""The precision of a prediction: the kubelet chooses among devices in Go's map order, which nobody can predict."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduling import Service, configuration, decoded, machine, pod, topology_of
from topowise import nrt
from topowise.kubeletconfig import KubeletConfiguration
from topowise_scheduler.kubelet import Kubelet, Machine, MemoryBlock
from topowise_scheduler.kubelet.machine import Device, DevicePlugin
from topowise_scheduler.ledger.node.history import Precision, precision_of

GPU = "example.com/gpu"
# "c" is near both NUMA nodes.
DEVICES = (Device("a", (0,)), Device("b", (0,)), Device("c", (0, 1)), Device("d", (1,)))


def hardware() -> Machine:
    return msgspec.structs.replace(machine(), devices=(DevicePlugin(GPU, DEVICES),))


def gpu_pod(**fields: Any) -> dict[str, Any]:
    document = pod("p", "2", **fields)
    for amounts in document["spec"]["containers"][0]["resources"].values():
        amounts[GPU] = "1"
    return document


def reported(node: Kubelet, version: str, config: KubeletConfiguration | None = None) -> nrt.NodeResourceTopology:
    return topology_of(hardware(), config or configuration(), node, version)


@pytest.mark.parametrize(
    ("allocated", "precision"),
    [
        ({}, "ids"),
        ({"devices": {GPU: ("b",)}}, "numa_nodes"),
        # "c" is as near to the hint as "a" is, so the kubelet may choose it.
        ({"devices": {GPU: ("c",)}}, "hint"),
        ({"devices": {GPU: ("d",)}}, "missed"),
        ({"cpus": 0b1100}, "numa_nodes"),
        ({"cpus": 0b110000}, "missed"),
        ({"cpus": 0b1100, "devices": {GPU: ("c",)}}, "hint"),
        ({"cpus": 0b110000, "devices": {GPU: ("b",)}}, "missed"),
        ({"memory": (MemoryBlock("memory", (1,), 1 << 30),)}, "missed"),
    ],
)
def test_the_worst_allocation_of_a_pod_decides(allocated: dict[str, Any], precision: str) -> None:
    service = Service()
    service.report(reported(Kubelet(hardware(), configuration()), "1"))
    service.put(gpu_pod(node="n1"))
    truth = Kubelet(hardware(), configuration())
    placement = truth.fork().admit(decoded(gpu_pod())).placements["c"]
    assert (placement.numa, placement.cpus, placement.devices) == ((0,), 0b110, {GPU: ("a",)})
    truth.hold("uid-p", {}, {"c": msgspec.structs.replace(placement, **allocated)})
    service.report(reported(truth, "2"))
    assert predictions(service) == {precision: 1}


def test_without_a_hint_every_device_is_equal() -> None:
    """Under the policy none the devices come from any NUMA node, and the CPUs are still predicted."""
    config = configuration(topologyManagerPolicy="none")
    service = Service()
    service.report(reported(Kubelet(hardware(), config), "1", config))
    service.put(gpu_pod(node="n1"))
    truth = Kubelet(hardware(), config)
    placement = truth.fork().admit(decoded(gpu_pod())).placements["c"]
    assert placement.numa is None
    truth.hold("uid-p", {}, {"c": msgspec.structs.replace(placement, devices={GPU: ("d",)})})
    service.report(reported(truth, "2", config))
    assert predictions(service) == {"hint": 1}


def predictions(service: Service) -> dict[str, int]:
    prefix = "prediction_"
    events = service.ledger.events.items()
    return {name.removeprefix(prefix): count for name, count in events if name.startswith(prefix) and count}


@pytest.mark.parametrize(
    ("listed", "precision"),
    [
        pytest.param({GPU: ("b",)}, Precision.NUMA_NODES, id="the other of all devices"),
        pytest.param({GPU: ("x",)}, Precision.MISSED, id="a device that may be anywhere"),
        pytest.param({GPU: ()}, Precision.IDS, id="none of the resource"),
        pytest.param({"example.com/gone": ("x",)}, Precision.IDS, id="a resource that the node does not have any more"),
    ],
)
def test_devices_that_the_node_has_and_the_report_lists_are_compared(
    listed: dict[str, tuple[str, ...]], precision: Precision
) -> None:
    node = Kubelet(msgspec.structs.replace(machine(), devices=(DevicePlugin(GPU, DEVICES[:2]),)), configuration())
    predicted = node.admit(decoded(gpu_pod())).placements["c"]
    assert precision_of(msgspec.structs.replace(predicted, devices=listed), predicted, node) is precision


@pytest.mark.parametrize("cpus", [0b110, 0b110110])
def test_cpus_where_the_shared_pool_was_predicted_are_missed(cpus: int) -> None:
    node = Kubelet(hardware(), configuration())
    listed = msgspec.structs.replace(node.admit(decoded(gpu_pod())).placements["c"], cpus=cpus)
    assert precision_of(listed, msgspec.structs.replace(listed, cpus=None), node) is Precision.MISSED
