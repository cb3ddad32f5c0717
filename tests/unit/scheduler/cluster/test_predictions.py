"""Which placements count as predicted: a choice that the kubelet leaves to Go's map order is not a misprediction."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduling import Service, configuration, decoded, machine, pod, topology_of
from topowise import nrt
from topowise_scheduler.kubelet import Kubelet, Machine, Placement
from topowise_scheduler.kubelet.machine import Device, DevicePlugin

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


def reported(node: Kubelet, version: str) -> nrt.NodeResourceTopology:
    return topology_of(hardware(), configuration(), node, version)


@pytest.mark.parametrize(
    ("device", "outcome"),
    [("a", "hit"), ("b", "hit"), ("c", "hit"), ("d", "miss")],
)
def test_any_device_near_the_hint_is_as_predicted(device: str, outcome: str) -> None:
    service = Service()
    service.report(reported(Kubelet(hardware(), configuration()), "1"))
    service.put(gpu_pod(node="n1"))
    truth = Kubelet(hardware(), configuration())
    needs = decoded(gpu_pod())
    placement = truth.fork().admit(needs).placements["c"]
    assert (placement.numa, placement.devices) == ((0,), {GPU: ("a",)})
    truth.hold("uid-p", {}, {"c": _with(placement, device)})
    service.report(reported(truth, "2"))
    events = service.ledger.events
    assert {name: events[f"prediction_{name}"] for name in ("hit", "miss")} == {"hit": 0, "miss": 0, outcome: 1}


def _with(placement: Placement, device: str) -> Placement:
    return msgspec.structs.replace(placement, devices={GPU: (device,)})
