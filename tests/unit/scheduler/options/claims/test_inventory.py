"""The inventory after any sequence of events is the inventory of the slices that are left."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from claim_cases import case
from topowise_scheduler.options.claims.inventory import Inventory, Pool
from topowise_scheduler.options.claims.objects import ResourceSlice, decode_slice
from topowise_scheduler.verdicts.kube_scheduler import Node


def _content(pools: tuple[Pool, ...]) -> list[Any]:
    return [
        (
            pool.id,
            [(item.id, item.device, item.index, item.root, item.not_modelled) for item in pool.devices],
            pool.others,
            pool.counters,
            pool.problem,
        )
        for pool in pools
    ]


@pytest.mark.parametrize("seed", range(30))
def test_events_lead_to_the_same_pools_as_a_fresh_inventory(seed: int) -> None:
    random = Random(seed)
    cases = [case(random) for _ in range(4)]
    slices = [decode_slice(msgspec.json.encode(raw)) for item in cases for raw in item["slices"]]
    nodes = [Node("n1", labels={"zone": "a"}), Node("n2", labels={"zone": "b"}), Node("n3")]
    inventory, left = Inventory(), dict[str, ResourceSlice]()
    for _ in range(60):
        item = random.choice(slices)
        if random.random() < 0.3:
            inventory.remove(item.name)
            left.pop(item.name, None)
        else:
            inventory.put(item)
            left[item.name] = item
        node = random.choice(nodes)
        fresh = Inventory()
        for remaining in left.values():
            fresh.put(remaining)
        assert _content(inventory.pools(node)) == _content(fresh.pools(node))
        assert len(inventory) == len(left)
    for name in list(left):
        inventory.remove(name)
    assert not any(inventory.pools(node) for node in nodes)
    assert not any(inventory.has_slices(node.name) for node in nodes)


def test_a_changed_label_changes_the_pools() -> None:
    spec = {"driver": "d", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "x"}]}
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    spec["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}
    inventory = Inventory()
    inventory.put(decode_slice(msgspec.json.encode({"metadata": {"name": "s"}, "spec": spec})))
    assert inventory.pools(Node("n", labels={"zone": "b"})) == ()
    assert len(inventory.pools(Node("n", labels={"zone": "a"}))) == 1
    assert inventory.pools(Node("n")) == ()


def test_the_pools_of_a_node_are_kept() -> None:
    item = case(Random(2))
    inventory = Inventory()
    for raw in item["slices"]:
        inventory.put(decode_slice(msgspec.json.encode(raw)))
    node = Node("n1", labels={"zone": "a"})
    assert inventory.pools(node) is inventory.pools(node)


def test_the_pools_that_are_kept_are_bounded() -> None:
    inventory = Inventory(most_bytes=50_000)
    for number in range(200):
        spec = {"driver": "d", "nodeName": f"n{number}", "devices": [{"name": "x"}]}
        spec["pool"] = {"name": f"n{number}", "generation": 1, "resourceSliceCount": 1}
        inventory.put(decode_slice(msgspec.json.encode({"metadata": {"name": f"s{number}"}, "spec": spec})))
        assert len(inventory.pools(Node(f"n{number}"))) == 1
    assert inventory.bytes <= 50_000
