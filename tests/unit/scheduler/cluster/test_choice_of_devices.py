"""Which devices a pod gets is its kubelet's or its plug-in's choice; it matters where they are near other nodes too."""

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
    """Of two GPUs near NUMA node 0 the second one is near node 1 too, and the only one there. The plug-in gives its
    last device first, which nobody can know."""

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
        """The pod runs, and nothing has come in between."""
        self.service.put({**document, "status": {"phase": "Running"}})
        self.service.clock.now += 3
        self.service.ledger.tick()


def test_until_a_report_a_pod_may_have_any_of_them() -> None:
    node = Node()
    first, second = with_gpu("a", "2", node="n1"), with_gpu("b", "4")
    node.service.put(first)
    assert node.take(first)
    node.later(first)
    # It takes the CPUs of node 1, and the GPU that is near it is the one that the first pod was given.
    assert not node.service.fits(second, "n1")
    assert not node.kubelet.fork().admit(decoded(second)).admitted
    node.report()
    assert not node.service.fits(second, "n1")
    node.kubelet.remove("uid-a")
    node.service.ledger.drop_pod("uid-a")
    node.report()
    assert node.service.fits(second, "n1")


@pytest.mark.parametrize("near", [(0,), (1,)])
def test_one_is_as_good_as_another_where_each_is_near_one_node(near: tuple[int, ...]) -> None:
    node = Node(near)
    first = with_gpu("a", "2", node="n1")
    node.service.put(first)
    assert node.take(first)
    node.later(first)
    assert node.service.ledger.node_states.possible.pods == 0
