"""The kubelet's choice among equal devices may decide whether it admits a pod."""

from __future__ import annotations

import pytest

from topowise import pods
from topowise.kubeletconfig import KubeletConfiguration
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, NumaNode
from topowise_scheduler.options.device_affinity.choices import may_refuse

GPU = "example.com/gpu"


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
