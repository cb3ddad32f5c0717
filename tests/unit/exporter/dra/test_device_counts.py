"""Devices of claims in the zones: on the NUMA node where they are, each once, never negative."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.dra.slices import Device, DeviceLocations, held_by_node, with_devices
from topowise_exporter.exclusions import Exclusions, PodPattern
from topowise_exporter.kubelet.allocations import Allocations, Claim, ContainerAllocation, PodAllocation
from topowise_exporter.machine import Machine, NumaNode
from topowise_exporter.machine.inventory import PciFunction
from topowise_exporter.publish.topology import Observation, Publishing, build
from topowise_exporter.zones import Accounts, Amount

DRIVER = "gpu.nvidia.com"
RESOURCE = "dra.topowise.io/gpu.nvidia.com"


def function(address: str, numa_node: int | None, root: str) -> PciFunction:
    return PciFunction(address, numa_node, "0x030200", "0x10de", "0x2330", "nvidia", None, (root,) if root else ())


def numa_node(numa_id: int) -> NumaNode:
    return NumaNode(numa_id, (numa_id,), 1 << 30, {}, {}, (0,))


# Ids with a gap; a root whose functions disagree, and a root without firmware data.
MACHINE = Machine(
    nodes=(numa_node(0), numa_node(4)),
    cpus=(),
    pci=(
        function("0000:16:00.0", 0, "pci0000:15"),
        function("0000:a1:00.0", 4, "pci0000:a0"),
        function("0000:a4:00.0", None, "pci0000:a0"),
        function("0000:c1:00.0", 0, "pci0000:c0"),
        function("0000:c2:00.0", 4, "pci0000:c0"),
        function("0000:e1:00.0", None, "pci0000:e0"),
    ),
    online=(0, 4),
    present=(0, 4),
    possible=(0, 4),
    offline=(),
    isolated=(),
)
EMPTY = Accounts({0: {}, 4: {}}, {}, frozenset(), ())


def gpu(name: str) -> Claim:
    return Claim(DRIVER, "n1", name)


def pod(name: str, *claims: Claim) -> PodAllocation:
    return PodAllocation("default", name, (ContainerAllocation("c", claims=claims),))


def amounts(devices: Mapping[Claim, Device], *pods: PodAllocation) -> dict[int, Amount]:
    counted = with_devices(EMPTY, devices, MACHINE, pods).amounts
    return {node_id: by_resource[RESOURCE] for node_id, by_resource in counted.items() if RESOURCE in by_resource}


@pytest.mark.parametrize(
    ("device", "node_id"),
    [
        (Device(numa_node=4, pci_bus_id="0000:16:00.0"), 4),
        # A node that is not here, as drivers say -1 for none, is no answer.
        (Device(numa_node=-1, pci_bus_id="0000:16:00.0"), 0),
        (Device(numa_node=1), None),
        (Device(pci_bus_id="0000:a1:00.0", pcie_roots=("pci0000:15",)), 4),
        # The kernel knows no node for this function, but knows the node of its neighbour on the same root.
        (Device(pci_bus_id="0000:a4:00.0", pcie_roots=("pci0000:a0",)), 4),
        (Device(pcie_roots=("pci0000:15",)), 0),
        (Device(pcie_roots=("pci0000:c0",)), None),
        (Device(pcie_roots=("pci0000:e0",)), None),
        (Device(pcie_roots=("pci0001:00",)), None),
        (Device(pcie_roots=("pci0000:15", "pci0000:a0")), None),
        (Device(pcie_roots=("pci0000:15", "pci0000:e0")), None),
        (Device(), None),
    ],
)
def test_a_device_is_on_the_node_that_driver_function_or_root_name(device: Device, node_id: int | None) -> None:
    assert DeviceLocations(MACHINE).of(device) == node_id


def test_a_driver_is_a_resource_of_the_zones_it_has_devices_on() -> None:
    devices = {gpu("gpu-0"): Device(0), gpu("gpu-1"): Device(0), gpu("gpu-2"): Device()}
    assert amounts(devices) == {0: Amount(2, 2, 2)}
    assert amounts({}) == {}


def test_a_node_that_has_no_zone_has_no_devices_either() -> None:
    # Zones of ids that no kubelet can align to are left out, and functions still name their nodes.
    part = msgspec.structs.replace(MACHINE, nodes=(numa_node(0),))
    devices = {gpu("gpu-0"): Device(pci_bus_id="0000:a1:00.0"), gpu("gpu-1"): Device(pcie_roots=("pci0000:a0",))}
    assert with_devices(Accounts({0: {}}, {}, frozenset(), ()), devices, part, ()).amounts == {0: {}}


def test_claimed_devices_are_not_available_and_a_shared_device_counts_once() -> None:
    devices = {gpu("gpu-0"): Device(0), gpu("gpu-1"): Device(4)}
    pods = pod("a", gpu("gpu-0")), pod("b", gpu("gpu-0"))
    assert amounts(devices, *pods) == {0: Amount(1, 1, 0), 4: Amount(1, 1, 1)}


def test_a_tainted_device_is_there_and_cannot_be_given() -> None:
    devices = {gpu("gpu-0"): Device(0, is_open=False), gpu("gpu-1"): Device(0)}
    assert amounts(devices) == {0: Amount(2, 1, 1)}
    assert amounts(devices, pod("a", gpu("gpu-0"))) == {0: Amount(2, 1, 1)}


def test_devices_that_are_not_given_as_a_whole_are_in_no_count() -> None:
    devices = {gpu("gpu-0-mig-1g"): Device(0, is_whole=False), gpu("gpu-1"): Device(0)}
    assert amounts(devices, pod("a", gpu("gpu-0-mig-1g"))) == {0: Amount(1, 1, 1)}


def test_allocated_devices_are_counted_by_node_even_if_no_slice_names_them() -> None:
    devices = {gpu("gpu-0"): Device(0), gpu("gpu-1-mig-1g"): Device(4, is_whole=False), gpu("gpu-2"): Device()}
    pods = (
        pod("a", gpu("gpu-0"), gpu("gone")),
        pod("b", gpu("gpu-1-mig-1g"), gpu("gpu-2")),
        pod("c", gpu("gpu-0"), Claim("net.example.com", "rack-1", "nic")),
    )
    assert amounts(devices, *pods) == {0: Amount(1, 1, 0)}
    assert held_by_node(devices, MACHINE, pods) == {
        (DRIVER, 0): 1,
        (DRIVER, 4): 1,
        (DRIVER, None): 2,
        ("net.example.com", None): 1,
    }


NAMES = st.sampled_from([gpu(f"gpu-{minor}") for minor in range(6)])


@given(
    st.dictionaries(
        NAMES,
        st.builds(
            Device,
            numa_node=st.sampled_from([None, -1, 0, 1, 4]),
            pcie_roots=st.lists(st.sampled_from(["pci0000:15", "pci0000:a0", "pci0000:c0"])).map(tuple),
            is_whole=st.booleans(),
            is_open=st.booleans(),
        ),
    ),
    st.lists(NAMES),
)
def test_amounts_are_in_order_and_every_device_is_on_one_zone_at_most(
    devices: dict[Claim, Device], claims: list[Claim]
) -> None:
    counted = amounts(devices, pod("a", *claims))
    assert all(amount.capacity >= amount.allocatable >= amount.available >= 0 for amount in counted.values())
    assert sum(amount.capacity for amount in counted.values()) <= sum(device.is_whole for device in devices.values())
    assert sum(held_by_node(devices, MACHINE, [pod("a", *claims)]).values()) == len(set(claims))


def resources(
    devices: Mapping[Claim, Device], excluded: Exclusions, *pods: PodAllocation
) -> dict[str, dict[str, str | int]]:
    seen = Observation(MACHINE, KubeletConfiguration(), Allocations(pods=pods), devices)
    zones = build("n1", seen, Publishing(), excluded).topology.zones or ()
    return {zone.name: {resource.name: resource.available for resource in zone.resources or ()} for zone in zones}


def test_dra_devices_are_published_beside_plug_in_devices_and_can_be_excluded_by_name_or_pod() -> None:
    devices = {gpu("gpu-0"): Device(0), gpu("gpu-1"): Device(0)}
    monitoring = pod("dcgm", gpu("gpu-0"), gpu("gpu-1"))
    amounts_of = resources(devices, Exclusions(), monitoring)
    assert {"cpu", "memory"} <= amounts_of["node-0"].keys()
    assert amounts_of["node-0"][RESOURCE] == "0"
    assert RESOURCE not in amounts_of["node-4"]
    assert RESOURCE not in resources(devices, Exclusions(resources=("dra.topowise.io/*",)), monitoring)["node-0"]
    assert resources(devices, Exclusions(pods=(PodPattern(name="dcgm"),)), monitoring)["node-0"][RESOURCE] == "2"


def test_the_roots_of_a_machine_are_published_beside_devices_of_claims() -> None:
    # The roots without a single NUMA node are there too: the bus of a device between two roots leads to the lower root.
    seen = Observation(MACHINE, KubeletConfiguration(), Allocations(), devices={gpu("gpu-0"): Device(0)})
    named = {item.name: item.value for item in build("n1", seen, Publishing(), Exclusions()).topology.attributes or ()}
    assert named["topowise.io/pcie-roots"] == "pci0000:15=0,pci0000:a0=4,pci0000:c0=,pci0000:e0="
    without = build("n1", msgspec.structs.replace(seen, devices={}), Publishing(), Exclusions()).topology
    assert "topowise.io/pcie-roots" not in {item.name for item in without.attributes or ()}
