"""The kubelet or the device plug-in chooses a pod's devices; the choice matters for devices near several NUMA nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduling import Service, configuration, decoded, machine, pod, topology_of
from topowise_scheduler.kubelet import Device, DevicePlugin, Kubelet, Machine

GPU = "x.io/gpu"


def with_gpu(name: str, cpu: str, **fields: Any) -> dict[str, Any]:
    document = pod(name, cpu, **fields)
    for amounts in document["spec"]["containers"][0]["resources"].values():
        amounts[GPU] = "1"
    return document


class Node:
    """Two GPUs are near NUMA node 0; the second is the only GPU near node 1. The plug-in allocates its last device
    first, which the model cannot predict."""

    def __init__(self, near: tuple[int, ...] = (0, 1)) -> None:
        devices = (Device("gpu0", (0,)), Device("gpu1", near))
        self.machine: Machine = msgspec.structs.replace(machine(), devices=(DevicePlugin(GPU, devices, "last"),))
        self.kubelet = Kubelet(self.machine, configuration())
        self.service = Service()
        self._version = 0
        self.report()

    def report(self) -> None:
        self._version += 1
        self.service.report(topology_of(self.machine, configuration(), self.kubelet, str(self._version)))

    def take(self, document: dict[str, Any]) -> bool:
        return self.kubelet.admit(decoded(document)).admitted

    def later(self, document: dict[str, Any]) -> None:
        """The pod runs, and no other event has happened since its bind."""
        self.service.put({**document, "status": {"phase": "Running"}})
        self.service.wait(3)


def test_until_a_report_a_pod_may_have_any_of_them() -> None:
    node = Node()
    first, second = with_gpu("a", "2", node="n1"), with_gpu("b", "4")
    node.service.put(first)
    assert node.take(first)
    node.later(first)
    # The pod takes the CPUs of node 1, and the first pod has the GPU near node 1.
    assert not node.service.fits(second, "n1")
    assert not node.kubelet.fork().admit(decoded(second)).admitted
    node.report()
    assert not node.service.fits(second, "n1")
    node.kubelet.remove("uid-a")
    node.service.ledger.drop_pod("uid-a")
    node.report()
    assert node.service.fits(second, "n1")


@pytest.mark.parametrize("near", [(0,), (1,)])
def test_devices_near_a_single_numa_node_are_interchangeable(near: tuple[int, ...]) -> None:
    node = Node(near)
    first = with_gpu("a", "2", node="n1")
    node.service.put(first)
    assert node.take(first)
    node.later(first)
    assert node.service.ledger.node_states.possible.pods == 0
