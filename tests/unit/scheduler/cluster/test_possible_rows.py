"""The joint rows of possible placements are those of each node, whatever came and went before."""

from __future__ import annotations

from random import Random

import numpy as np

from topowise_scheduler.cluster.rows.possible_rows import JoinedRows


def test_joined_rows_are_those_that_were_put_last() -> None:
    rng, joined, expected = Random(1), JoinedRows(), dict[int, list[int]]()
    free = 1000
    for _ in range(3000):
        owner = rng.randrange(60)
        rows = list(range(free, free + rng.choice((0, 0, 1, 2, 5))))
        free += len(rows)
        joined.put(owner, rows)
        expected[owner] = rows
        found, owners = joined.all()
        wanted = sorted((owner, row) for owner, mine in expected.items() for row in mine)
        assert sorted(zip(owners.tolist(), found.tolist(), strict=True)) == wanted
    asked = [3, 700, 5]
    found, owners = joined.of(asked)
    assert sorted(zip(owners.tolist(), found.tolist(), strict=True)) == sorted(
        (owner, row) for owner in asked for row in expected.get(owner, [])
    )
    assert joined.of([700])[0].dtype == np.int32


def test_what_was_given_out_of_some_nodes_stays_as_it_was() -> None:
    joined = JoinedRows()
    joined.put(1, [10, 11])
    found, _ = joined.of([1])
    joined.put(1, [12])
    assert found.tolist() == [10, 11]
