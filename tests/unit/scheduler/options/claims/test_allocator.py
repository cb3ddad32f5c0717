"""The allocator: which devices it chooses, what it does not know, and its bounds. The recorded results of the real
allocator cover the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import msgspec
import pytest

from topowise_scheduler.options.claims.allocated import AllocatedDevices
from topowise_scheduler.options.claims.allocator import Allocation, NoFit, Unknown, allocate
from topowise_scheduler.options.claims.inventory import Inventory
from topowise_scheduler.options.claims.objects import (
    DeviceID,
    DeviceRequestAllocationResult,
    decode_claim,
    decode_class,
    decode_slice,
)
from topowise_scheduler.options.claims.results import with_share_ids
from topowise_scheduler.options.claims.selectors import Selectors
from topowise_scheduler.options.claims.work import Work
from topowise_scheduler.verdicts.kube_scheduler import Node

DRIVER = "gpu.example.com"
ROOT = "resource.kubernetes.io/pcieRoot"
SPENT = Unknown("a long search, or selectors that take long")


def slice_of(name: str, devices: list[dict[str, Any]], **spec: Any) -> Any:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1, **spec.pop("pool", {})}
    raw = {"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": "n1", "devices": devices, **spec}}
    raw["spec"]["pool"] = pool
    return decode_slice(msgspec.json.encode(raw))


def gpus(number: int, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"name": f"gpu-{at}", "attributes": {"numa": {"int": at // 2}, "index": {"int": at}}, **fields}
        for at in range(number)
    ]


def on_roots(driver: str, *roots: str) -> Any:
    """Returns a slice with a device on each root."""
    devices = [{"name": f"{root}-{at}", "attributes": {ROOT: {"string": root}}} for at, root in enumerate(roots)]
    return slice_of(driver, devices, driver=driver, pool={"name": driver})


def claim_of(request: Mapping[str, Any] | None = None, name: str = "c", **devices: Any) -> Any:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1, **(request or {})}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}], **devices}}
    return decode_claim(msgspec.json.encode({"metadata": {"name": name, "namespace": "team"}, "spec": spec}))


def everything(**request: Any) -> Any:
    return claim_of({"allocationMode": "All", "count": 0, **request})


def selected(expression: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}}]}


def run(
    slices: Iterable[Any],
    *claims: Any,
    taken: Iterable[str] = (),
    work: Work | None = None,
    rank: Callable[[DeviceID], int | None] = lambda device: 0,
) -> Allocation | NoFit | Unknown:
    inventory = Inventory()
    for item in slices:
        inventory.put(item)
    gpu = decode_class(b'{"metadata":{"name":"gpu"},"spec":{}}')
    allocated = AllocatedDevices()
    allocated.add(DeviceRequestAllocationResult("r", DRIVER, "n1", name) for name in taken)
    return allocate(Node("n1"), claims, inventory, {"gpu": gpu}, allocated, Selectors(), work or Work(), rank)


def names(result: Allocation | NoFit | Unknown) -> list[list[str]]:
    assert isinstance(result, Allocation), result
    return [[device.device for device in claim.devices.results or ()] for claim in result.claims]


# --- The choice ---


def test_devices_of_the_best_rank_are_chosen() -> None:
    ranks = {"gpu-0": None, "gpu-1": 1, "gpu-2": 0, "gpu-3": 1}
    slices = [slice_of("s", gpus(4))]
    assert names(run(slices, claim_of(), rank=lambda device: ranks[device.device])) == [["gpu-2"]]
    assert names(run(slices, claim_of({"count": 2}), rank=lambda device: ranks[device.device])) == [["gpu-1", "gpu-2"]]
    assert isinstance(run(slices, claim_of({"count": 4}), rank=lambda device: ranks[device.device]), NoFit)
    result = run(slices, everything(), rank=lambda device: ranks[device.device])
    assert result == NoFit(
        "claim team/c, request r: asks for all devices, but for gpu.example.com/n1/gpu-0: it is not to be allocated"
    )


def test_the_fullest_root_that_suffices_is_chosen() -> None:
    slices = [on_roots(DRIVER, "a", "a", "a", "b", "c", "c")]
    assert names(run(slices, claim_of())) == [["b-3"]]
    assert names(run(slices, claim_of({"count": 2}))) == [["c-4", "c-5"]]
    assert names(run(slices, claim_of({"count": 4}))) == [["a-0", "a-1", "a-2", "c-4"]], "no root suffices"


def test_the_devices_of_a_pod_share_a_root_if_they_can() -> None:
    slices = [on_roots(DRIVER, "a", "b", "c", "c"), on_roots("nic.example.com", "c", "d")]
    nic, gpu = (
        claim_of(selected("device.driver == 'nic.example.com'")),
        claim_of(selected(f"device.driver == '{DRIVER}'")),
    )
    assert names(run(slices, gpu, nic)) == [["c-2"], ["c-0"]]
    assert names(run(slices, nic, gpu)) == [["c-0"], ["c-2"]]
    assert names(run(slices, gpu)) == [["a-0"]], "a pod without network card leaves the root to others"


def test_counter_sets_in_use_come_first() -> None:
    sets = [{"name": name, "counters": {"memory": {"value": "2"}}} for name in ("one", "two")]
    uses = [
        {"name": f"{name}-{at}", "consumesCounters": [{"counterSet": name, "counters": {"memory": {"value": "1"}}}]}
        for name in ("one", "two")
        for at in range(2)
    ]
    slices = [
        slice_of("a", [], sharedCounters=sets, pool={"resourceSliceCount": 2}),
        slice_of("b", uses, pool={"resourceSliceCount": 2}),
    ]
    assert names(run(slices, claim_of())) == [["one-0"]]
    assert names(run(slices, claim_of(), taken=["two-1"])) == [["two-0"]]
    assert isinstance(run(slices, claim_of({"count": 3}), taken=["one-0", "two-1"]), NoFit)


def test_shared_devices_in_use_come_first() -> None:
    capacity = {"memory": {"value": "4", "requestPolicy": {"default": "1"}}}
    slices = [slice_of("s", gpus(3, allowMultipleAllocations=True, capacity=capacity))]
    inventory, allocated = Inventory(), AllocatedDevices()
    inventory.put(slices[0])
    share = DeviceRequestAllocationResult("r", DRIVER, "n1", "gpu-2", shareID="1", consumedCapacity={"memory": "3"})
    gpu = decode_class(b'{"metadata":{"name":"gpu"},"spec":{}}')
    for chosen in ("gpu-2", "gpu-0"):
        allocated.add([share])
        result = allocate(
            Node("n1"), [claim_of()], inventory, {"gpu": gpu}, allocated, Selectors(), Work(), lambda device: 0
        )
        assert names(result) == [[chosen]]
        share = msgspec.structs.replace(share, shareID="2", consumedCapacity={"memory": "1"})
    # The driver does not offer shares any more, and claims still have some.
    inventory.put(slice_of("s", gpus(3)))
    result = allocate(
        Node("n1"), [claim_of({"count": 3})], inventory, {"gpu": gpu}, allocated, Selectors(), Work(), lambda device: 0
    )
    assert isinstance(result, NoFit)


# --- Validity ---


def test_the_allocation_is_complete() -> None:
    tolerations = [{"key": "old", "operator": "Exists"}]
    config = [{"requests": ["r"], "opaque": {"driver": DRIVER, "parameters": {"a": [1.50]}}}]
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}
    device = gpus(1, bindingConditions=["ready"], bindingFailureConditions=["broken"])
    item = slice_of("s", device, nodeName=None, nodeSelector={"nodeSelectorTerms": [zone]})
    inventory = Inventory()
    inventory.put(item)
    gpu = decode_class(b'{"metadata":{"name":"gpu"},"spec":{"config":[{"opaque":{"driver":"d","parameters":1}}]}}')
    result = allocate(
        Node("n1", labels={"zone": "z"}),
        [claim_of({"tolerations": tolerations, "adminAccess": True}, config=config)],
        inventory,
        {"gpu": gpu},
        AllocatedDevices(),
        Selectors(),
        Work(),
        lambda device: 0,
    )
    assert isinstance(result, Allocation), result
    assert msgspec.json.decode(msgspec.json.encode(result.claims[0])) == {
        "devices": {
            "results": [
                {
                    "request": "r",
                    "driver": DRIVER,
                    "pool": "n1",
                    "device": "gpu-0",
                    "adminAccess": True,
                    "tolerations": tolerations,
                    "bindingConditions": ["ready"],
                    "bindingFailureConditions": ["broken"],
                }
            ],
            "config": [
                {"source": "FromClass", "requests": ["r"], "opaque": {"driver": "d", "parameters": 1}},
                {"source": "FromClaim", **config[0]},
            ],
        },
        "nodeSelector": {"nodeSelectorTerms": [zone]},
    }


def test_shares_of_a_device_fill_its_capacity() -> None:
    policy = {"default": "10Gi", "validRange": {"min": "10Gi", "step": "10Gi"}}
    shared = gpus(1, allowMultipleAllocations=True, capacity={"memory": {"value": "40Gi", "requestPolicy": policy}})
    claims = [claim_of({"capacity": {"requests": {"memory": "15Gi"}}}, name=f"c{number}") for number in range(3)]
    result = run([slice_of("s", shared)], *claims[:2])
    assert isinstance(result, Allocation)
    numbers = count()
    for at, claim in enumerate(result.claims):
        (device,) = with_share_ids(claim, lambda: f"share-{next(numbers)}").devices.results or ()
        assert (device.consumedCapacity, device.shareID) == ({"memory": "20Gi"}, f"share-{at}")
    assert isinstance(run([slice_of("s", shared)], *claims), NoFit)


def test_a_device_that_is_turned_down_gives_its_counters_back() -> None:
    """kube-scheduler 1.36.2 takes the counters of a device before it looks at its taints."""
    uses = {"consumesCounters": [{"counterSet": "one", "counters": {"memory": {"value": "1"}}}]}
    devices = [
        {"name": "tainted", "taints": [{"key": "old", "effect": "NoSchedule"}], **uses},
        {"name": "whole", **uses},
    ]
    slices = [
        slice_of(
            "a",
            [],
            sharedCounters=[{"name": "one", "counters": {"memory": {"value": "2"}}}],
            pool={"resourceSliceCount": 2},
        ),
        slice_of("b", devices, pool={"resourceSliceCount": 2}),
    ]
    tolerant = claim_of({"tolerations": [{"operator": "Exists"}]}, name="d")
    assert names(run(slices, claim_of(), tolerant)) == [["whole"], ["tainted"]]


def test_distinct_devices_are_compared_with_all_others() -> None:
    devices = [{"name": f"gpu-{at}", "attributes": {"lane": {"int": at % 2}}} for at in range(4)]
    constraint = {"distinctAttribute": f"{DRIVER}/lane"}
    slices = [slice_of("s", devices)]
    assert names(run(slices, claim_of({"count": 2}, constraints=[constraint]))) == [["gpu-0", "gpu-1"]]
    assert isinstance(run(slices, claim_of({"count": 3}, constraints=[constraint])), NoFit)


def test_lists_match_if_all_have_a_value_in_common() -> None:
    lists = ([0, 1], [1, 2], [2, 0], [1])
    devices = [{"name": f"gpu-{at}", "attributes": {"numa": {"ints": some}}} for at, some in enumerate(lists)]
    claim = claim_of({"count": 3}, constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    assert names(run([slice_of("s", devices)], claim)) == [["gpu-0", "gpu-1", "gpu-3"]]
    assert isinstance(run([slice_of("s", devices[:3])], claim), NoFit), "each two have a value in common"


def test_an_alternative_for_all_devices_that_was_not_chosen_meets_no_constraint() -> None:
    """All devices do not match, and two of the chosen ones do not either."""
    alternatives = [
        {"name": "all", "deviceClassName": "gpu", "allocationMode": "All"},
        {"name": "one", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1},
    ]
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    requests = [{"name": "r", "firstAvailable": alternatives}, {"name": "q", "exactly": exactly}]
    constraints = [{"matchAttribute": f"{DRIVER}/index", "requests": ["r"]}]
    spec = {"devices": {"requests": requests, "constraints": constraints}}
    claim = decode_claim(msgspec.json.encode({"metadata": {"name": "c", "namespace": "team"}, "spec": spec}))
    assert names(run([slice_of("s", gpus(3))], claim)) == [["gpu-0", "gpu-1"]]


def test_devices_that_are_not_needed_do_not_change_the_order_of_pools() -> None:
    """A share of s suffices for two claims, so kube-scheduler does not have x, for which it would take pool a last."""

    def device(name: str, kind: str, **fields: Any) -> dict[str, Any]:
        return {"name": name, "attributes": {"kind": {"string": kind}}, **fields}

    first = [device("x", "x", bindingConditions=["ready"]), device("y", "y")]
    second = [device("s", "s", allowMultipleAllocations=True), device("t", "y")]
    slices = [slice_of(name, some, pool={"name": name}) for name, some in (("a", first), ("z", second))]
    kinds = ("['s']", "['s', 'x']", "['y']", "['y']")
    claims = [claim_of(selected(f"device.attributes['{DRIVER}'].kind in {some}"), name=f"c{some}") for some in kinds]
    result = run(slices, *claims, rank=lambda device: int(device.device == "s"))
    assert names(result) == [["s"], ["s"], ["y"], ["t"]]


def test_an_alternative_for_all_devices_needs_all_of_them() -> None:
    """The chosen device alone would satisfy the first alternative."""
    alternatives = [
        {"name": "all", "deviceClassName": "gpu", "allocationMode": "All"},
        {"name": "one", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1},
    ]
    spec = {"devices": {"requests": [{"name": "r", "firstAvailable": alternatives}]}}
    claim = decode_claim(msgspec.json.encode({"metadata": {"name": "c", "namespace": "team"}, "spec": spec}))
    slices = [slice_of("s", gpus(2))]
    for taken, request in ((["gpu-0"], "r/one"), ([], "r/all")):
        result = run(slices, claim, taken=taken)
        assert isinstance(result, Allocation)
        assert {device.request for device in result.claims[0].devices.results or ()} == {request}


# --- What is not known, and what does not fit ---


def test_a_device_for_which_a_selector_fails_is_no_candidate() -> None:
    devices = gpus(2)
    devices[0]["attributes"].pop("index")
    claim = claim_of(selected(f'device.attributes["{DRIVER}"].index >= 0'))
    assert names(run([slice_of("s", devices)], claim)) == [["gpu-1"]]
    result = run([slice_of("s", devices[:1])], claim)
    assert result == NoFit("claim team/c, request r, device gpu.example.com/n1/gpu-0: no such key: index")


def test_a_selector_that_fails_for_another_chosen_device_leaves_the_claims_unknown() -> None:
    """kube-scheduler ends the attempt, whichever devices are left."""
    missing, driver = f'device.attributes["{DRIVER}"].missing == 1', "device.driver == 'nic.example.com'"
    nic = slice_of("t", [{"name": "nic", "attributes": {f"{DRIVER}/missing": {"int": 1}}}], driver="nic.example.com")
    claims = claim_of(selected(missing)), claim_of(selected(f"!({driver})"), name="d")
    result = run([slice_of("s", gpus(1)), nic], *claims)
    assert result == Unknown("claim team/c, request r, device gpu.example.com/n1/gpu-0: no such key: missing")


def test_a_device_that_is_not_known_is_no_candidate() -> None:
    unknown = selected("device.driver == 'gpu.example.com' ? sets.contains([1], [1]) : true")
    other = slice_of("t", [{"name": "nic"}], driver="nic.example.com", pool={"name": "t"})
    assert isinstance(run([slice_of("s", gpus(1))], claim_of(unknown)), Unknown)
    assert isinstance(run([slice_of("s", gpus(1)), other], claim_of(unknown)), Unknown), "not read"
    mapped = gpus(2)
    mapped[0]["nodeAllocatableResourceMappings"] = {"cpu": {"allocationMultiplier": "1"}}
    assert names(run([slice_of("s", mapped)], claim_of())) == [["gpu-1"]]
    feature = Unknown("node-allocatable resources of device gpu.example.com/n1/gpu-0")
    assert run([slice_of("s", mapped)], claim_of({"count": 2})) == feature
    assert run([slice_of("s", mapped)], everything()) == feature
    mapped[0]["nodeAllocatableResources"] = mapped[0].pop("nodeAllocatableResourceMappings")
    assert run([slice_of("s", mapped)], everything()) == feature


def test_a_missing_class_is_no_fit() -> None:
    result = run([slice_of("s", gpus(1))], claim_of({"deviceClassName": "other"}))
    assert result == NoFit("claim team/c, request r: there is no DeviceClass other")


def test_incomplete_and_invalid_pools_have_no_devices() -> None:
    old = slice_of("a", gpus(1), pool={"resourceSliceCount": 2})
    complete = slice_of("b", gpus(2), pool={"name": "complete"})
    assert run([old], claim_of()) == NoFit("claim team/c, request r: 0 of 1 devices")
    assert names(run([old, complete], claim_of({"count": 2}))) == [["gpu-0", "gpu-1"]]
    result = run([old, complete], everything())
    assert result == NoFit("claim team/c, request r: asks for all devices, but pool n1 is incomplete")
    newer = slice_of("c", gpus(1), nodeName="n2", pool={"generation": 2})
    assert names(run([old, newer, complete], everything())) == [["gpu-0", "gpu-1"]], "the old pool is replaced"
    other = slice_of("d", gpus(1), nodeName="n2", pool={"resourceSliceCount": 1})
    assert run([old, other], claim_of()) == Unknown("different values of resourceSliceCount in pool n1")
    twice = slice_of("a", [*gpus(1), *gpus(1)])
    assert run([twice], claim_of()) == NoFit("claim team/c, request r: 0 of 1 devices")


def test_unknown_fields_are_unknown() -> None:
    field = Unknown("field spec.devices[].colour of ResourceSlice s")
    coloured = slice_of("s", gpus(1, colour="red"))
    assert run([coloured], claim_of()) == field
    assert names(run([coloured, slice_of("t", gpus(1), pool={"name": "t"})], claim_of())) == [["gpu-0"]]
    assert run([slice_of("s", gpus(1))], claim_of({"priority": 1})) == Unknown(
        "field spec.devices.requests[].exactly.priority of ResourceClaim team/c"
    )


def test_a_long_search_is_unknown() -> None:
    claims = [claim_of({"count": 4}, name=f"c{number}") for number in range(3)]
    claims.append(claim_of({"count": 4}, constraints=[{"matchAttribute": f"{DRIVER}/numa"}], name="last"))
    assert run([slice_of("s", gpus(20))], *claims) == SPENT
    assert run([slice_of("s", gpus(20))], claim_of(), work=Work(0)) == SPENT


def test_very_many_devices_are_unknown() -> None:
    claims = [claim_of({"count": 32}, name=f"c{number}") for number in range(9)]
    assert run([slice_of("s", gpus(1))], *claims) == Unknown("more than 256 devices of a pod")
    slices = [slice_of("s", gpus(128)), slice_of("t", gpus(128), pool={"name": "t"})]
    assert isinstance(run(slices, *claims[:8]), Allocation)


def test_too_many_devices_for_a_claim_are_no_fit() -> None:
    result = run([slice_of("s", gpus(40))], claim_of({"count": 33}))
    assert result == NoFit("claim team/c: number of requested devices 33 exceeds the claim limit of 32")


def test_unreadable_quantities_are_unknown() -> None:
    device = gpus(1, capacity={"memory": {"value": "many"}}, allowMultipleAllocations=True)
    result = run([slice_of("s", device)], claim_of())
    assert isinstance(result, Unknown)
    assert "many" in result.feature


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


@pytest.mark.parametrize("levels", [1, 30])
def test_a_nested_selector_at_the_end_of_a_long_search_ends_no_call(levels: int) -> None:
    """The stack that the search for 255 devices leaves is too small for some selectors, which are unknown."""
    text = "(" * levels + "device.driver != ''" + ")" * levels
    claims = [claim_of({"count": 32}, name=f"c{number}") for number in range(7)]
    claims.append(claim_of({"count": 31}, name="c7"))
    claims.append(claim_of(selected(text), name="last"))
    slices = [slice_of("s", gpus(128)), slice_of("t", gpus(128), pool={"name": "t"})]
    result = run(slices, *claims, work=Work(10**9))
    assert isinstance(result, Allocation) or (levels > 1 and isinstance(result, Unknown))
