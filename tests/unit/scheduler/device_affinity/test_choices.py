"""The kubelet's choice among equal devices may decide whether it admits a pod."""

from __future__ import annotations

import pytest

from topowise import pods
from topowise.kubeletconfig import KubeletConfiguration
from topowise_scheduler.device_affinity import may_refuse
from topowise_scheduler.device_affinity.choices import Choices, KnownDevices
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, NumaNode

GPU = "example.com/gpu"
NEAR = ((0,), (0,), (0,), (1,), (1,), (0, 1))


@pytest.mark.parametrize(
    ("scope", "counts", "may_be_refused"),
    [("container", (2, 3), True), ("container", (3, 2), False), ("container", (3,), False), ("pod", (2, 1), False)],
)
def test_a_container_may_take_devices_near_two_numa_nodes_that_the_next_container_needs(
    scope: str, counts: tuple[int, ...], may_be_refused: bool
) -> None:
    """A real kubelet has refused a pod that requests devices as in the first case (docs/lab.md)."""
    numa = tuple(NumaNode(at, 1 << 30, (Core(at, (2 * at,)), Core(at, (2 * at + 1,))), {}, (10, 20)) for at in (0, 1))
    plugin = DevicePlugin(GPU, tuple(Device(f"gpu-{at}", near) for at, near in enumerate(NEAR)))
    config = KubeletConfiguration(topologyManagerPolicy="restricted", topologyManagerScope=scope)
    node = Kubelet(Machine(numa=numa, devices=(plugin,)), config)
    containers = [pods.Container(f"c{at}", pods.Resources(limits={GPU: count})) for at, count in enumerate(counts)]
    pod = pods.Pod(pods.Metadata("p", "d", "u"), pods.Spec(containers=tuple(containers)))
    choices = Choices(node, node.view("u", pods.needs(pod)), frozenset(), KnownDevices({}, {}, {}))
    allocations = list(choices)
    assert choices.is_complete
    assert any(allocation is not None for allocation in allocations)
    assert (None in allocations) is may_be_refused


@pytest.mark.parametrize("loose", [True, False])
def test_on_a_single_numa_node_devices_without_a_numa_node_are_taken_too(loose: bool) -> None:
    near: list[tuple[int, ...] | None] = [None, (0,), (0,)] if loose else [(0,), (0,), (0,)]
    plugin = DevicePlugin(GPU, tuple(Device(f"gpu-{at}", numa_ids) for at, numa_ids in enumerate(near)))
    numa = NumaNode(0, 1 << 30, (Core(0, (0,)), Core(0, (1,))), {}, (10,))
    node = Kubelet(
        Machine(numa=(numa,), devices=(plugin,)), KubeletConfiguration(topologyManagerPolicy="single-numa-node")
    )
    containers = [pods.Container(f"c{at}", pods.Resources(limits={GPU: count})) for at, count in enumerate((1, 2))]
    pod = pods.Pod(pods.Metadata("p", "d", "u"), pods.Spec(containers=tuple(containers)))
    view = node.view("u", pods.needs(pod))
    assert node.fork().admit_view(view).admitted
    assert may_refuse(node, view, frozenset((GPU,)), {}) is loose
