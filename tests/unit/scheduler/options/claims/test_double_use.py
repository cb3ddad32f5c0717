"""Whatever is allocated and freed: no device is used twice, and no capacity and no counter is exceeded. The sums are
made from the slices and the allocations alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec
import pytest

from claim_cases import Run, case, claim
from topowise.quantity import nano_value
from topowise_scheduler.options.claims.allocator import Allocation
from topowise_scheduler.options.claims.objects import AllocationResult, DeviceRequestAllocationResult, decode_claim
from topowise_scheduler.options.claims.results import with_share_ids


def _check(item: dict[str, Any], results: Iterable[DeviceRequestAllocationResult]) -> None:
    users: Counter[tuple[str, ...]] = Counter()
    shares: dict[tuple[str, ...], Counter[str]] = {}
    for result in results:
        if result.adminAccess:
            continue
        users[result.id] += 1
        if result.shareID is not None:
            taken = shares.setdefault(result.id, Counter())
            taken.update({name: nano_value(text) for name, text in (result.consumedCapacity or {}).items()})
    used: Counter[tuple[str, ...]] = Counter()
    for raw in item["slices"]:
        spec = raw["spec"]
        pool = (spec["driver"], spec["pool"]["name"])
        for device in spec.get("devices", ()):
            key = (*pool, device["name"])
            if not users[key]:
                continue
            assert users[key] == 1 or key in shares, f"{key} has two users"
            for name, amount in shares.get(key, {}).items():
                assert amount <= nano_value(device["capacity"][name]["value"]), f"{name} of {key}"
            for consumption in device.get("consumesCounters", ()):
                for name, counter in consumption["counters"].items():
                    used[*pool, consumption["counterSet"], name] += nano_value(counter["value"])
    for raw in item["slices"]:
        spec = raw["spec"]
        for counters in spec.get("sharedCounters", ()):
            for name, counter in counters["counters"].items():
                key = (spec["driver"], spec["pool"]["name"], counters["name"], name)
                assert used[key] <= nano_value(counter["value"]), f"counter {key}"


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_used_twice(seed: int) -> None:
    random = Random(f"double use {seed}")
    item = case(random) | {"allocated": [], "ranks": "none"}
    for raw in item["slices"]:
        # Each device is in one slice, and each pool complete: the sums need no generations.
        raw["spec"]["pool"]["generation"] = 1
    run = Run(item)
    classes = [one["metadata"]["name"] for one in item["classes"]]
    held: list[AllocationResult] = []
    for _ in range(30):
        if held and random.random() < 0.3:
            gone = held.pop(random.randrange(len(held)))
            run.allocated.remove(gone.devices.results or ())
            continue
        wanted = [claim(random, f"claim-{at}", classes, item["drivers"]) for at in range(random.randint(1, 2))]
        run.claims = [decode_claim(msgspec.json.encode(raw)) for raw in wanted]
        result = run.allocate()
        if not isinstance(result, Allocation):
            continue
        for allocation in result.claims:
            held.append(with_share_ids(allocation, lambda: f"{random.getrandbits(128):032x}"))
            run.allocated.add(held[-1].devices.results or ())
        _check(item, [one for allocation in held for one in allocation.devices.results or ()])
