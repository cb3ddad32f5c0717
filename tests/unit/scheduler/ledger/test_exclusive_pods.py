"""Which pods a fingerprint of method with-exclusive-resources counts, by what their node's kubelet has."""

from __future__ import annotations

import pytest

from topowise import pods
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, KubeletConfiguration, Machine, NumaNode
from topowise_scheduler.ledger.node.confirmation import is_exclusive


def kubelet(*near: tuple[int, ...] | None) -> Kubelet:
    """A node with one device "x.io/gpu" for each of the sets of NUMA nodes."""
    nodes = tuple(NumaNode(id=number, memory=1 << 30, cores=(Core(0, (number,)),)) for number in range(2))
    devices = tuple(Device(f"d{number}", numa) for number, numa in enumerate(near))
    return Kubelet(Machine(nodes, (DevicePlugin("x.io/gpu", devices),)), KubeletConfiguration())


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (kubelet((0,)), True),
        # The kubelet allocates a device; the pod does not say which device.
        (kubelet((0,), None), True),
        (kubelet(None, None), False),
    ],
    ids=["near a node", "some near a node", "near none"],
)
def test_a_device_counts_if_its_resource_is_in_a_zone(node: Kubelet, expected: bool) -> None:
    asking = pods.Container("c", pods.Resources(limits={"x.io/gpu": "1"}))
    assert is_exclusive(node, pods.needs(pods.Pod(pods.Metadata("p"), pods.Spec((asking,))))) is expected
