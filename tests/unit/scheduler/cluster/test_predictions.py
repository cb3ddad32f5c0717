"""Which pods lie as predicted: a choice that the kubelet leaves to Go's map order is no mistake of a prediction."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import Service, configuration, machine, pod
from topowise import nrt, pods
from topowise_scheduler.kubelet import Kubelet, Machine, Placement
from topowise_scheduler.kubelet.machine import Device, DevicePlugin

GPU = "example.com/gpu"
# "c" is near both NUMA nodes.
DEVICES = (Device("a", (0,)), Device("b", (0,)), Device("c", (0, 1)), Device("d", (1,)))


def hardware() -> Machine:
    return msgspec.structs.replace(machine(), devices=(DevicePlugin(GPU, DEVICES),))


def wanted(**fields: Any) -> dict[str, Any]:
    made = pod("p", "2", **fields)
    for amounts in made["spec"]["containers"][0]["resources"].values():
        amounts[GPU] = "1"
    return made


def reported(node: Kubelet, version: str) -> nrt.NodeResourceTopology:
    made = exported(hardware(), configuration(), node, lambda uid: ("default", uid.removeprefix("uid-")))
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, resourceVersion=version))


@pytest.mark.parametrize(
    ("device", "outcome"),
    [("a", "hit"), ("b", "hit"), ("c", "hit"), ("d", "miss")],
)
def test_any_device_near_the_hint_is_as_predicted(device: str, outcome: str) -> None:
    service = Service()
    service.report(reported(Kubelet(hardware(), configuration()), "1"))
    service.put(wanted(node="n1"))
    truth = Kubelet(hardware(), configuration())
    needs = pods.decode(msgspec.json.encode(wanted()))
    held = truth.fork().admit(needs).placements["c"]
    assert (held.numa, held.devices) == ((0,), {GPU: ("a",)})
    truth.hold("uid-p", {}, {"c": _with(held, device)})
    service.report(reported(truth, "2"))
    events = service.ledger.events
    assert {name: events[f"prediction_{name}"] for name in ("hit", "miss")} == {"hit": 0, "miss": 0, outcome: 1}


def _with(held: Placement, device: str) -> Placement:
    return msgspec.structs.replace(held, devices={GPU: (device,)})
