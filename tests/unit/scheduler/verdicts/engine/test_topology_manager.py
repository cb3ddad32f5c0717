"""Merged hints of many nodes equal the hints that the topology manager of each node merges."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topowise_scheduler.kubelet import NumaNode
from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.hints import Hints
from topowise_scheduler.kubelet.masks import by_size
from topowise_scheduler.kubelet.topology_manager import TopologyManager
from topowise_scheduler.verdicts.engine import mask_arrays
from topowise_scheduler.verdicts.engine.node_vector import ABSENT
from topowise_scheduler.verdicts.engine.topology_manager import CountHints, elect, merge

NODES = 30


@pytest.mark.parametrize("policy", ["restricted", "best-effort"])
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=40, deadline=None)
def test_the_best_hint_is_found(policy: str, seed: int) -> None:
    rng = Random(seed)
    zones = rng.randint(1, 8)
    rows = tuple(
        tuple(10 if row == column else rng.choice((12, 20, 32)) for column in range(zones)) for row in range(zones)
    )
    closest = rng.random() < 0.5
    manager = TopologyManager(
        TopologySettings(policy, "container", closest),
        [NumaNode(zone, 1, distances=rows[zone]) for zone in range(zones)],
    )
    resources = [_hints(rng, zones) for _ in range(rng.randint(1, 4))]
    order = mask_arrays.order_of(zones, rows if closest else None)
    masks, preferred = merge(resources, order, np.ones(NODES, dtype=np.bool_), policy == "best-effort")
    everything = np.arange(NODES)
    tables = [hints.fitting(everything) for hints in resources]
    for node in range(NODES):
        lists = []
        for hints, table in zip(resources, tables, strict=True):
            if hints.active is None or hints.active[node]:
                fits = sum(1 << int(mask) for mask in np.flatnonzero(table[:, node]))
                resource_hints = Hints(fits, fits & by_size(zones)[int(hints.sizes[node])])
                lists += [resource_hints] * hints.lists
        want = manager.merge(lists)
        assert preferred[node] == want.preferred
        if want.preferred or policy == "best-effort":
            assert masks[node] == want.mask


@pytest.mark.parametrize(
    ("votes", "winner"),
    [
        pytest.param([(0, 1)], 0b10, id="a higher score"),
        pytest.param([(1, 1), (0, 1)], 0b10, id="one higher, one equal"),
        pytest.param([(0, 1), (1, 0)], 0b01, id="they disagree"),
    ],
)
def test_a_numa_node_wins_that_no_manager_scores_lower(votes: list[tuple[int, int]], winner: int) -> None:
    scores = [np.array(vote)[:, None] for vote in votes]
    assert elect(np.array([0b11], dtype=np.uint8), scores).tolist() == [winner]


def _hints(rng: Random, zones: int) -> CountHints:
    count = rng.choice((0, 1, 2, 3, 6, 1000))
    most = max(1, count * rng.choice((1, 1, 2)) // rng.choice((1, 1, 2)))
    capacity = [rng.choice((0, most, most)) for _ in range(zones)]
    values = np.array(
        [[rng.randint(0, amount) if amount else ABSENT for _ in range(NODES)] for amount in capacity], dtype=np.int64
    )
    having = [1 << zone for zone, amount in enumerate(capacity) if amount]
    largest = list(accumulate(sorted(capacity, reverse=True)))
    size = min(1 + sum(total < count for total in largest), len(having))
    bound = None
    singles = mask_arrays.to_masks(values >= count)
    if rng.random() < 0.3:
        bound = np.array([rng.choice((0, 0, *having)) for _ in range(NODES)], dtype=np.uint8)
        singles = np.where(bound == 0, singles, singles & bound)
    return CountHints(
        values=values,
        count=count,
        singles=singles,
        sizes=np.full(NODES, size, dtype=np.uint8),
        active=np.array([rng.random() < 0.8 for _ in range(NODES)]) if rng.random() < 0.3 else None,
        bound=bound,
        lists=rng.choice((1, 1, 2)),
    )
