"""Which pods a report of amounts without a fingerprint can include."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topowise_scheduler.ledger.node.confirmation import Amounts, included


def cpus(*amounts: int) -> list[Amounts]:
    return [{"cpu": amount} for amount in amounts]


@pytest.mark.parametrize(
    ("in_use", "there", "ended", "positions"),
    [
        pytest.param(5, [4, 2], [], [0], id="the first pods"),
        pytest.param(3, [4, 2], [], [1], id="without a pod that has no room"),
    ],
)
def test_where_nothing_adds_up_pods_are_included_that_have_room(
    in_use: int, there: list[int], ended: list[int], positions: list[int]
) -> None:
    assert included({"cpu": in_use}, cpus(*there), cpus(*ended)) == frozenset(positions)


def test_memory_over_two_numa_nodes_is_counted_on_both() -> None:
    there = [{"cpu": 4, "memory": 2}, {"cpu": 2, "memory": 1}]
    assert included({"cpu": 6, "memory": 5}, there, []) == {0, 1}


AMOUNTS = st.lists(st.fixed_dictionaries({"cpu": st.integers(0, 4), "memory": st.integers(0, 3)}), max_size=6)


@given(
    there=AMOUNTS,
    ended=AMOUNTS,
    in_use=st.fixed_dictionaries({"cpu": st.integers(0, 8), "memory": st.integers(0, 6)}),
)
@example(
    there=[{"cpu": 4, "memory": 0}, {"cpu": 0, "memory": 3}, {"cpu": 1, "memory": 0}],
    ended=[{"cpu": 2, "memory": 0}],
    in_use={"cpu": 4, "memory": 3},
)
def test_it_is_the_fewest_of_all_beginnings_that_add_up(
    there: list[Amounts], ended: list[Amounts], in_use: Amounts
) -> None:
    holding = [position for position, amounts in enumerate(there) if any(amounts.values())]
    adding_up = [
        set(holding[:many])
        for many in range(len(holding) + 1)
        for late in range(len(ended) + 1)
        if all(
            sum(there[position][name] for position in holding[:many]) + sum(past[name] for past in ended[:late])
            == in_use[name]
            for name in in_use
        )
    ]
    if adding_up:
        assert included(in_use, there, ended) == min(adding_up, key=len)


@given(
    there=AMOUNTS, ended=AMOUNTS, in_use=st.fixed_dictionaries({"cpu": st.integers(0, 12), "memory": st.integers(0, 9)})
)
def test_included_pods_have_at_most_what_is_in_use(there: list[Amounts], ended: list[Amounts], in_use: Amounts) -> None:
    inclusion = included(in_use, there, ended)
    for name, amount in in_use.items():
        assert sum(there[position][name] for position in inclusion) <= amount
