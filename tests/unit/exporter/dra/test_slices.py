"""ResourceSlices: every served version reads alike, and only whole pools of the newest generation count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise_exporter.dra.slices import Device, Slice, decode, devices_of
from topowise_exporter.kubelet.allocations import Claim

# As NVIDIA's driver 25.12 publishes them (gpu.nvidia.com), shortened to two devices.
NVIDIA: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "n1-gpu.nvidia.com-wvrlc", "generation": 1},
    "spec": {
        "driver": "gpu.nvidia.com",
        "nodeName": "n1",
        "pool": {"generation": 1, "name": "n1", "resourceSliceCount": 1},
        "devices": [
            {
                "name": f"gpu-{minor}",
                "attributes": {
                    "cudaComputeCapability": {"version": "9.0.0"},
                    "productName": {"string": "NVIDIA H100 80GB HBM3"},
                    "resource.kubernetes.io/pciBusID": {"string": bus},
                    "resource.kubernetes.io/pcieRoot": {"string": root},
                },
                "capacity": {"memory": {"value": "81559Mi"}},
            }
            for minor, bus, root in ((0, "0000:1B:00.0", "pci0000:15"), (1, "0000:a4:00.0", "pci0000:a0"))
        ],
    },
}


def with_device(device: dict[str, Any], driver: str = "d.example.com") -> Device:
    spec = {"driver": driver, "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}
    raw = {"metadata": {"name": "s"}, "spec": {**spec, "devices": [{"name": "x", **device}]}}
    return decode(json.dumps(raw).encode()).devices["x"]


def in_pool(name: str, *devices: str, generation: int = 1, of_pool: int = 1, pool: str = "p") -> Slice:
    return Slice(name, "d", pool, generation, of_pool, {device: Device() for device in devices})


def test_a_slice_of_a_gpu_driver_says_where_its_devices_are() -> None:
    read = decode(json.dumps(NVIDIA).encode())
    assert (read.name, read.driver, read.pool, read.generation, read.of_pool) == (
        "n1-gpu.nvidia.com-wvrlc",
        "gpu.nvidia.com",
        "n1",
        1,
        1,
    )
    assert read.devices == {
        "gpu-0": Device(pci_bus_id="0000:1b:00.0", pcie_roots=("pci0000:15",)),
        "gpu-1": Device(pci_bus_id="0000:a4:00.0", pcie_roots=("pci0000:a0",)),
    }


def test_v1beta1_has_the_same_fields_a_level_deeper() -> None:
    older = {**NVIDIA, "apiVersion": "resource.k8s.io/v1beta1", "spec": dict(NVIDIA["spec"])}
    older["spec"]["devices"] = [
        {"name": device["name"], "basic": {key: part for key, part in device.items() if key != "name"}}
        for device in NVIDIA["spec"]["devices"]
    ]
    assert decode(json.dumps(older).encode()) == decode(json.dumps(NVIDIA).encode())


@pytest.mark.parametrize(
    ("driver", "attributes", "node"),
    [
        ("d", {"resource.kubernetes.io/numaNode": {"int": 1}, "numaNode": {"int": 0}}, 1),
        # As a list it begins with the device's own node (KEP-6072).
        ("d", {"resource.kubernetes.io/numaNode": {"ints": [5, 4, 6, 7]}}, 5),
        ("gpu.amd.com", {"gpu.amd.com/numaNode": {"int": 3}}, 3),
        ("gpu.amd.com", {"numaNode": {"int": 3}}, 3),
        ("dra.cpu", {"dra.cpu/numaNodeID": {"int": 2}}, 2),
        ("sriovnetwork.k8snetworkplumbingwg.io", {"dra.net/numaNode": {"int": 1}}, 1),
        ("d", {"other.example.com/numaNode": {"int": 1}}, None),
        ("d", {"resource.kubernetes.io/numaNode": {"string": "1"}}, None),
        ("d", {"resource.kubernetes.io/numaNode": {"ints": []}}, None),
        ("d", {"resource.kubernetes.io/numaNode": {"version": "1.0.0"}, "numaNode": {"bool": True}}, None),
        ("d", {}, None),
    ],
)
def test_the_numa_node_is_read_under_every_name_that_drivers_use(
    driver: str, attributes: dict[str, Any], node: int | None
) -> None:
    assert with_device({"attributes": attributes}, driver).numa_node == node


def test_what_a_driver_says_beyond_that_does_no_harm() -> None:
    odd = {"attributes": {"a": {"bools": [True]}, "b": {"versions": ["1.0.0"]}, "c": {"matrix": [[1]]}, "d": {}}}
    assert with_device(odd) == with_device({"attributes": None}) == with_device({}) == Device()
    roots = {"attributes": {"resource.kubernetes.io/pcieRoot": {"strings": ["pci0000:00", "pci0000:40"]}}}
    assert with_device(roots).pcie_roots == ("pci0000:00", "pci0000:40")


def test_partitionable_and_shareable_devices_are_not_whole() -> None:
    partition = {"consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": "10Gi"}}}]}
    assert not with_device(partition).is_whole
    assert not with_device({"basic": partition}).is_whole
    assert not with_device({"allowMultipleAllocations": True}).is_whole
    assert with_device({"allowMultipleAllocations": False, "consumesCounters": []}).is_whole


@pytest.mark.parametrize(("effect", "is_open"), [("NoSchedule", False), ("NoExecute", False), ("None", True)])
def test_a_tainted_device_is_not_open(effect: str, is_open: bool) -> None:
    assert with_device({"taints": [{"key": "example.com/ecc", "effect": effect}]}).is_open == is_open


def test_a_slice_of_shared_counters_has_no_devices_and_belongs_to_the_pool() -> None:
    spec = {
        "driver": "d",
        "nodeName": "n1",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2},
        "sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}],
    }
    counters = decode(json.dumps({"metadata": {"name": "counters"}, "spec": spec}).encode())
    assert set(devices_of([counters, in_pool("s", "a", of_pool=2)], {})) == {Claim("d", "p", "a")}


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    slices = [in_pool("old", "a", "b"), in_pool("new", "b", "c", generation=2)]
    assert set(devices_of(slices, {})) == {Claim("d", "p", "b"), Claim("d", "p", "c")}


def test_while_a_driver_writes_a_pool_anew_it_is_as_it_was() -> None:
    before = devices_of([in_pool("s1", "a", of_pool=2), in_pool("s2", "b", of_pool=2)], {})
    half = [in_pool("s1", "a", "c", generation=2, of_pool=2), in_pool("s2", "b", of_pool=2)]
    assert devices_of(half, before) == before
    assert devices_of(half, {}) == {}
    whole = [half[0], in_pool("s2", "d", generation=2, of_pool=2)]
    assert {claim.device for claim in devices_of(whole, before)} == {"a", "c", "d"}


def test_a_pool_without_slices_is_gone() -> None:
    before = devices_of([in_pool("s", "a"), in_pool("t", "b", pool="q")], {})
    assert set(devices_of([in_pool("t", "b", pool="q")], before)) == {Claim("d", "q", "b")}


@given(
    st.lists(
        st.builds(
            in_pool,
            st.text("st", min_size=1, max_size=2),
            st.sampled_from("abc"),
            generation=st.integers(1, 3),
            of_pool=st.integers(1, 2),
            pool=st.sampled_from("pq"),
        ),
        max_size=6,
        unique_by=lambda item: item.name,
    )
)
def test_the_order_in_which_slices_arrive_does_not_matter(slices: list[Slice]) -> None:
    once = devices_of(slices, {})
    assert devices_of(reversed(slices), {}) == once
    # What is known already changes nothing about pools that are whole.
    assert devices_of(slices, once) == once
