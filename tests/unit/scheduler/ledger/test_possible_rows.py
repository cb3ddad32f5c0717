"""The joint rows of possible placements are the current rows of each node, after any order of changes."""

from __future__ import annotations

from random import Random

import numpy as np

from topowise_scheduler.ledger.rows.possible_rows import JoinedRows


def test_joined_rows_are_the_last_written_rows() -> None:
    rng, joined, expected = Random(1), JoinedRows(), dict[int, list[int]]()
    free = 1000
    for _ in range(3000):
        owner = rng.randrange(60)
        rows = list(range(free, free + rng.choice((0, 0, 1, 2, 5))))
        free += len(rows)
        joined.put(owner, rows)
        expected[owner] = rows
        joined_rows, owners = joined.all()
        expected_rows = sorted((owner, row) for owner, owned in expected.items() for row in owned)
        assert sorted(zip(owners.tolist(), joined_rows.tolist(), strict=True)) == expected_rows
    owners_of_interest = [3, 700, 5]
    joined_rows, owners = joined.of(owners_of_interest)
    assert sorted(zip(owners.tolist(), joined_rows.tolist(), strict=True)) == sorted(
        (owner, row) for owner in owners_of_interest for row in expected.get(owner, [])
    )
    assert joined.of([700])[0].dtype == np.int32


def test_what_was_given_out_of_some_nodes_stays_as_it_was() -> None:
    joined = JoinedRows()
    joined.put(1, [10, 11])
    rows, _ = joined.of([1])
    joined.put(1, [12])
    assert rows.tolist() == [10, 11]
