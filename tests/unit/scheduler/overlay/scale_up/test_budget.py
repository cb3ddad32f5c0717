"""What may be requested, as the placeholders of the cluster show it."""

from __future__ import annotations

from collections import Counter

import pytest

from topowise_scheduler.overlay.scale_up import budget
from topowise_scheduler.overlay.scale_up.budget import Budget, Facts, Limits
from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels
from topowise_scheduler.overlay.scale_up.placeholders import Outcome, Placeholder, PodName

A: GroupLabels = (("pool", "a"),)
B: GroupLabels = (("pool", "b"),)
LIMITS = Limits(in_flight=5, per_group=3, per_hour=8, back_off=600.0)
HOUR = 3600.0
NOW = 100 * HOUR
PODS = (PodName("uid", "default", "pod"),)


def placeholder(
    outcome: Outcome = "", *, group: GroupLabels = A, age: float = 10.0, ended: float = 5.0, node: str = ""
) -> Placeholder:
    name = f"{group}{outcome}{age}{ended}{node}"
    end = NOW - ended if outcome else 0.0
    return Placeholder(name, name, group, PODS, created=NOW - age, node=node, outcome=outcome, ended=end)


def allowance(*placeholders: Placeholder, group: GroupLabels = A) -> int:
    return Budget(LIMITS, placeholders, NOW).allowance(group)


def test_the_first_node_of_a_group_is_requested_alone() -> None:
    assert allowance() == 1
    assert allowance(placeholder()) == 0
    assert allowance(placeholder(node="n1")) == 0, "it has not helped yet"
    assert allowance(placeholder("helped", age=HOUR * 2)) == 3


def test_the_limits_count_nodes_on_their_way() -> None:
    proof = placeholder("helped", age=2 * HOUR)
    proof_of_b = placeholder("helped", age=2 * HOUR, group=B)
    assert allowance(proof, placeholder(age=1), placeholder(age=2)) == 1
    assert allowance(proof, placeholder(age=1, node="n1"), placeholder(age=2)) == 2, "n1 is there"
    others = [placeholder(age=age, group=B) for age in (1, 2, 3)]
    assert allowance(proof, proof_of_b, *others) == 2, "5 in all groups"
    recent = [placeholder("unneeded", age=age, group=B) for age in range(1, 8)]
    assert allowance(proof, *recent) == 1, "8 an hour"


def test_a_group_pauses_after_a_failure_and_twice_as_long_after_the_next() -> None:
    first = placeholder("useless", age=700, ended=599)
    assert allowance(first) == 0
    assert allowance(placeholder("useless", age=700, ended=601)) == 1
    second = placeholder("late", age=1300, ended=601)
    assert Budget(LIMITS, (second, first), NOW).paused_until(A) == NOW - 599 + 1200
    assert allowance(second, first, group=B) == 1


def test_a_failure_ends_the_proof_and_the_next_help_ends_the_pause() -> None:
    helped, failed = placeholder("helped", age=900, ended=890), placeholder("useless", age=800, ended=700)
    assert allowance(helped, failed) == 1
    assert allowance(failed, placeholder("helped", age=500, ended=400)) == 3


def test_a_pause_is_a_day_at_most() -> None:
    failures = [placeholder("useless", age=50 * HOUR - at, ended=40 * HOUR - at) for at in range(40)]
    assert Budget(LIMITS, failures, NOW).paused_until(A) <= NOW - 40 * HOUR + 39 + 24 * HOUR


def test_an_ended_placeholder_is_kept_as_long_as_it_matters() -> None:
    old_help, help_ = placeholder("helped", age=3 * HOUR, ended=2 * HOUR), placeholder("helped", age=2 * HOUR)
    failure = placeholder("useless", age=2 * HOUR, ended=300)
    past = placeholder("useless", age=2 * HOUR, ended=700, group=B)
    others = [placeholder("taken", age=2 * HOUR), placeholder("unneeded", age=60)]
    budget = Budget(LIMITS, [old_help, help_, failure, past, *others], NOW)
    kept = [budget.is_kept(item) for item in (old_help, help_, failure, past, *others)]
    assert kept == [False, True, False, False, False, True], "the failure is older than the help"
    assert Budget(LIMITS, [failure], NOW).is_kept(failure)
    assert not Budget(LIMITS, [placeholder("helped", age=30 * HOUR, ended=25 * HOUR)], NOW).is_kept(
        placeholder("helped", age=30 * HOUR, ended=25 * HOUR)
    )


def test_a_gang_gets_all_its_nodes_or_the_first_of_a_group_that_is_not_proven() -> None:
    proof = placeholder("helped", age=2 * HOUR)
    assert Budget(LIMITS, [proof], NOW).affords(Counter({A: 3}))
    assert not Budget(LIMITS, [proof], NOW).affords(Counter({A: 4}))
    assert Budget(LIMITS, [], NOW).affords(Counter({A: 4})), "one of them"
    assert not Budget(LIMITS, [placeholder()], NOW).affords(Counter({A: 4}))


BOUGHT = placeholder(node="n1")


@pytest.mark.parametrize(
    ("item", "facts", "outcome"),
    [
        (placeholder(), Facts(10, 1, 0, 0), ""),
        (placeholder(), Facts(901, 1, 0, 0), "late"),
        (placeholder(), Facts(10, 0, 1, 0), "unneeded"),
        (BOUGHT, Facts(10, 0, 2, 2, has_node=True), "helped"),
        (BOUGHT, Facts(10, 1, 0, 0, has_node=True), ""),
        (BOUGHT, Facts(901, 1, 0, 0, has_node=True), "late"),
        (BOUGHT, Facts(10, 1, 0, 0, has_node=False), "late"),
        (BOUGHT, Facts(2000, 1, 0, 0, has_node=True, reported_for=3), ""),
        (BOUGHT, Facts(10, 1, 0, 0, has_node=True, reported_for=0, refusal="cannot align"), "useless"),
        (BOUGHT, Facts(10, 0, 0, 0, has_node=True, refusal="its kubelet refused a pod"), "useless"),
        (BOUGHT, Facts(10, 1, 1, 1, has_node=True, reported_for=120), "helped"),
        (BOUGHT, Facts(10, 1, 1, 0, has_node=True, reported_for=120), "taken"),
    ],
)
def test_the_end_of_a_placeholder(item: Placeholder, facts: Facts, outcome: str) -> None:
    assert budget.end_of(item, facts).outcome == outcome
