"""Free amounts of several NUMA nodes equal the sum of the free amounts of each, for all managed resources."""

from __future__ import annotations

from random import Random

import pytest

import random_nodes
from topowise_scheduler.kubelet import free_amounts


@pytest.mark.parametrize("seed", range(30))
def test_amounts_of_a_mask_equal_the_sum_of_its_nodes(seed: int) -> None:
    node = random_nodes.node(Random(seed), load=2).kubelet
    per_node = free_amounts.by_position(node)
    everywhere = (1 << len(node.node_ids)) - 1
    (total,) = free_amounts.on_masks(node, [everywhere])
    assert total.keys() == {name for amounts in per_node for name in amounts}
    if node.cpu is not None:
        assert total["cpu"] == node.cpu.available.bit_count() == sum(amounts["cpu"] for amounts in per_node)
    if node.memory is not None:
        for name, left in node.memory.tables.free.items():
            assert [amounts[name] for amounts in per_node] == [max(0, amount) for amount in left]
            assert total[name] == sum(amounts[name] for amounts in per_node)
    for resource in node.devices.tables:
        # A device near two NUMA nodes counts on both nodes, and only once in the sum.
        assert total[resource] == node.devices.free(resource).bit_count()
        assert max(amounts[resource] for amounts in per_node) <= total[resource]
        assert total[resource] <= sum(amounts[resource] for amounts in per_node)


def test_random_nodes_have_memory_and_devices() -> None:
    nodes = [free_amounts.by_position(random_nodes.node(Random(seed), load=2).kubelet) for seed in range(30)]
    names = {name for node in nodes for amounts in node for name, amount in amounts.items() if amount}
    assert {"cpu", "memory"} < names
    assert any("/" in name for name in names)
