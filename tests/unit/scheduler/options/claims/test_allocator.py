"""The allocator: what it answers for what is not modelled, and its bounds. The recorded results of the real allocator
cover the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from topowise_scheduler.options.claims.allocated import AllocatedDevices
from topowise_scheduler.options.claims.allocator import Allocation, NoFit, Unknown, allocate
from topowise_scheduler.options.claims.features import features_of
from topowise_scheduler.options.claims.inventory import Inventory
from topowise_scheduler.options.claims.objects import (
    DeviceRequestAllocationResult,
    decode_claim,
    decode_class,
    decode_slice,
)
from topowise_scheduler.options.claims.selectors import Selectors
from topowise_scheduler.options.claims.work import Work
from topowise_scheduler.verdicts.kube_scheduler import Node

DRIVER = "gpu.example.com"


def slice_of(name: str, devices: list[dict[str, Any]], **spec: Any) -> Any:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1, **spec.pop("pool", {})}
    raw = {"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": "n1", "devices": devices, **spec}}
    raw["spec"]["pool"] = pool
    return decode_slice(msgspec.json.encode(raw))


def gpus(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"name": f"gpu-{number}", "attributes": {"numa": {"int": number // 2}, "index": {"int": number}}, **fields}
        for number in range(count)
    ]


def claim_of(request: Mapping[str, Any] | None = None, name: str = "c", **devices: Any) -> Any:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1, **(request or {})}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}], **devices}}
    return decode_claim(msgspec.json.encode({"metadata": {"name": name, "namespace": "team"}, "spec": spec}))


def run(
    slices: Iterable[Any],
    *claims: Any,
    minor: int = 36,
    gates: Mapping[str, bool] | None = None,
    taken: Iterable[str] = (),
    work: Work | None = None,
) -> Allocation | NoFit | Unknown:
    inventory = Inventory()
    for item in slices:
        inventory.put(item)
    gpu = decode_class(b'{"metadata":{"name":"gpu"},"spec":{}}')
    allocated = AllocatedDevices()
    allocated.add(DeviceRequestAllocationResult("r", DRIVER, "n1", name) for name in taken)
    features = features_of(minor, gates)
    return allocate(Node("n1"), claims, inventory, {"gpu": gpu}, allocated, features, Selectors(), work or Work())


def names(result: Allocation | NoFit | Unknown) -> list[list[str]]:
    assert isinstance(result, Allocation), result
    return [[device.id.device for device in claim] for claim in result.claims]


def test_a_failing_selector_ends_the_attempt() -> None:
    selectors = [{"cel": {"expression": f'device.attributes["{DRIVER}"].missing == 1'}}]
    result = run([slice_of("s", gpus(1))], claim_of({"selectors": selectors}))
    assert isinstance(result, NoFit)
    assert result.ends_attempt
    assert "claim team/c: selector #0: CEL runtime error" in result.reason


def test_a_missing_class_ends_the_attempt() -> None:
    result = run([slice_of("s", gpus(1))], claim_of({"deviceClassName": "other"}))
    assert result == NoFit("claim team/c, request r: could not retrieve device class other", ends_attempt=True)


def test_the_order_of_pools_is_random_before_1_36() -> None:
    slices = [slice_of("a", gpus(1), pool={"name": "a"}), slice_of("b", gpus(1), pool={"name": "b"})]
    result = run(slices, claim_of(), minor=35)
    assert result == Unknown("devices in several pools or slices, which 1.35 takes in random order")
    assert isinstance(run(slices, claim_of()), Allocation)
    taken = AllocatedDevices()
    assert DRIVER not in taken
    assert names(run([*slices, slice_of("c", [], pool={"name": "c"})], claim_of({"count": 2}), minor=35)) == [
        ["gpu-0", "gpu-0"]
    ], "each order takes both devices"


def test_a_newer_generation_elsewhere_hides_a_pool() -> None:
    old = slice_of("a", gpus(1), pool={"resourceSliceCount": 2})
    assert run([old], claim_of()) == NoFit("cannot allocate all claims"), "the pool is incomplete"
    newer = slice_of("b", gpus(1), nodeName="n2", pool={"generation": 2})
    assert run([old, newer], claim_of({"allocationMode": "All", "count": 0})) == NoFit("cannot allocate all claims")
    result = run([old], claim_of({"allocationMode": "All", "count": 0}))
    assert isinstance(result, NoFit)
    assert result.ends_attempt


@pytest.mark.parametrize(
    ("minor", "gates", "feature"),
    [
        (33, {}, "kube-scheduler 1.33"),
        (37, {}, "kube-scheduler 1.37"),
        (36, {"DRAListTypeAttributes": True}, "feature gate DRAListTypeAttributes"),
        (36, {"DRADeviceTaintRules": True}, "feature gate DRADeviceTaintRules"),
        (35, {"DRAConsumableCapacity": True}, "feature gate DRAConsumableCapacity of 1.35"),
        (34, {"DRAPartitionableDevices": True}, "feature gate DRAPartitionableDevices of 1.34"),
    ],
)
def test_other_versions_and_gates_are_unknown(minor: int, gates: dict[str, bool], feature: str) -> None:
    assert run([slice_of("s", gpus(1))], claim_of(), minor=minor, gates=gates) == Unknown(feature)


def test_unknown_fields_are_unknown() -> None:
    assert run([slice_of("s", gpus(1, colour="red"))], claim_of()) == Unknown(
        "field spec.devices[].colour of ResourceSlice s"
    )
    assert run([slice_of("s", gpus(1))], claim_of({"priority": 1})) == Unknown(
        "field spec.devices.requests[].exactly.priority of ResourceClaim team/c"
    )


def test_devices_for_other_nodes_make_nothing_unknown() -> None:
    other = slice_of("t", gpus(1, colour="red"), nodeName="n2", pool={"name": "n2"})
    assert isinstance(run([slice_of("s", gpus(1)), other], claim_of()), Allocation)


def test_a_long_search_is_unknown() -> None:
    claims = [claim_of({"count": 4}, name=f"c{number}") for number in range(3)]
    claims.append(claim_of({"count": 4}, constraints=[{"matchAttribute": f"{DRIVER}/numa"}], name="last"))
    slices = [slice_of("s", gpus(20))]
    spent = Unknown("a long search, or selectors that take long")
    assert run(slices, *claims) == spent
    assert run([slice_of("s", gpus(20))], claim_of(), work=Work(0)) == spent


def test_very_many_devices_are_unknown() -> None:
    claims = [claim_of({"count": 32}, name=f"c{number}") for number in range(9)]
    assert run([slice_of("s", gpus(1))], *claims) == Unknown("more than 256 devices of a pod")
    assert isinstance(
        run([slice_of("s", gpus(128)), slice_of("t", gpus(128), pool={"name": "t"})], *claims[:8]), Allocation
    )


def test_too_many_devices_for_a_claim_end_the_attempt() -> None:
    result = run([slice_of("s", gpus(40))], claim_of({"count": 33}))
    assert isinstance(result, NoFit)
    assert result.ends_attempt
    assert "exceeds the claim limit of 32" in result.reason


def test_unreadable_quantities_are_unknown() -> None:
    device = gpus(1, capacity={"memory": {"value": "many"}}, allowMultipleAllocations=True)
    result = run([slice_of("s", device)], claim_of())
    assert isinstance(result, Unknown)
    assert "many" in result.feature


def test_shares_of_a_device_fill_its_capacity() -> None:
    policy = {"default": "10Gi", "validRange": {"min": "10Gi", "step": "10Gi"}}
    shared = gpus(1, allowMultipleAllocations=True, capacity={"memory": {"value": "40Gi", "requestPolicy": policy}})
    claims = [claim_of({"capacity": {"requests": {"memory": "15Gi"}}}, name=f"c{number}") for number in range(3)]
    result = run([slice_of("s", shared)], *claims[:2])
    assert isinstance(result, Allocation)
    assert [claim[0].consumed for claim in result.claims] == [{"memory": 20 * (1 << 30) * 10**9}] * 2
    assert run([slice_of("s", shared)], *claims) == NoFit("cannot allocate all claims")


def test_removed_allocations_free_their_devices() -> None:
    exclusive = DeviceRequestAllocationResult("r", DRIVER, "n1", "a")
    share = DeviceRequestAllocationResult("r", DRIVER, "n1", "b", shareID="1", consumedCapacity={"memory": "1Gi"})
    other = msgspec.structs.replace(share, shareID="2")
    admin = msgspec.structs.replace(exclusive, device="c", adminAccess=True)
    allocated = AllocatedDevices()
    allocated.add([exclusive, share, other, admin])
    assert (exclusive.id in allocated, share.id in allocated, admin.id in allocated) == (True, True, False)
    assert allocated.consumed(share.id) == {"memory": 2 * (1 << 30) * 10**9}
    allocated.remove([exclusive, share, admin])
    assert (exclusive.id in allocated, share.id in allocated) == (False, True)
    allocated.remove([other, other])
    assert (allocated.devices, allocated.shares, allocated.consumed(share.id)) == (set(), {}, None)


def test_all_devices_for_a_later_alternative_are_unknown_before_1_36() -> None:
    alternatives = [
        {"name": "many", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 5},
        {"name": "all", "deviceClassName": "gpu", "allocationMode": "All"},
    ]
    spec = {"devices": {"requests": [{"name": "r", "firstAvailable": alternatives}]}}
    claim = decode_claim(msgspec.json.encode({"metadata": {"name": "c", "namespace": "team"}, "spec": spec}))
    slices = [slice_of("s", gpus(2))]
    assert isinstance(run(slices, claim, minor=35), Unknown)
    assert names(run(slices, claim)) == [["gpu-0", "gpu-1"]]


@pytest.mark.parametrize("levels", [1, 30])
def test_a_nested_selector_at_the_end_of_a_long_search_ends_no_call(levels: int) -> None:
    """The stack that the search for 255 devices leaves is too small for some selectors, which are unknown."""
    text = "(" * levels + "device.driver != ''" + ")" * levels
    claims = [claim_of({"count": 32}, name=f"c{number}") for number in range(7)]
    claims.append(claim_of({"count": 31}, name="c7"))
    claims.append(claim_of({"selectors": [{"cel": {"expression": text}}]}, name="last"))
    slices = [slice_of("s", gpus(128)), slice_of("t", gpus(128), pool={"name": "t"})]
    result = run(slices, *claims, work=Work(10**9))
    assert isinstance(result, Allocation) or (levels > 1 and isinstance(result, Unknown))
