"""What is free on some NUMA nodes is what is free on each of them, of everything a manager gives out."""

from __future__ import annotations

from random import Random

import pytest

import random_nodes
from topowise_scheduler.kubelet import free_amounts


@pytest.mark.parametrize("seed", range(30))
def test_nodes_together_have_what_each_has(seed: int) -> None:
    node = random_nodes.node(Random(seed), load=2).kubelet
    apart = free_amounts.by_position(node)
    everywhere = (1 << len(node.node_ids)) - 1
    (together,) = free_amounts.on_masks(node, [everywhere])
    assert together.keys() == {name for amounts in apart for name in amounts}
    if node.cpu is not None:
        assert together["cpu"] == node.cpu.available.bit_count() == sum(amounts["cpu"] for amounts in apart)
    if node.memory is not None:
        for name, left in node.memory.tables.free.items():
            assert [amounts[name] for amounts in apart] == [max(0, amount) for amount in left]
            assert together[name] == sum(amounts[name] for amounts in apart)
    for resource in node.devices.tables:
        # One that is near two NUMA nodes is on both of them, and is one device.
        assert together[resource] == node.devices.free(resource).bit_count()
        assert max(amounts[resource] for amounts in apart) <= together[resource]
        assert together[resource] <= sum(amounts[resource] for amounts in apart)


def test_memory_and_devices_are_among_what_is_seen() -> None:
    found = [free_amounts.by_position(random_nodes.node(Random(seed), load=2).kubelet) for seed in range(30)]
    names = {name for node in found for amounts in node for name, amount in amounts.items() if amount}
    assert {"cpu", "memory"} < names
    assert any("/" in name for name in names)
