"""Annotations that request a Topology Manager policy: topowise's and Volcano's."""

import pytest

from topowise.errors import ParseError
from topowise_scheduler.verdicts import policy_annotations

ALL = ("none", "best-effort", "restricted", "single-numa-node")


@pytest.mark.parametrize(
    ("annotation", "value", "accepted"),
    [
        ("topowise.io/numa-policy", "none", ALL),
        ("topowise.io/numa-policy", "best-effort", ALL[1:]),
        ("topowise.io/numa-policy", "restricted", ALL[2:]),
        ("topowise.io/numa-policy", "single-numa-node", ALL[3:]),
        ("volcano.sh/numa-topology-policy", "none", ALL),
        ("volcano.sh/numa-topology-policy", "best-effort", ("best-effort",)),
        ("volcano.sh/numa-topology-policy", "restricted", ("restricted",)),
        ("volcano.sh/numa-topology-policy", "single-numa-node", ("single-numa-node",)),
    ],
)
def test_ours_means_at_least_and_volcanos_means_exactly(annotation: str, value: str, accepted: tuple[str, ...]) -> None:
    demand = policy_annotations.demand({annotation: value})
    assert _accepted(demand) == accepted


def test_both_annotations_must_be_met() -> None:
    demand = policy_annotations.demand(
        {"topowise.io/numa-policy": "restricted", "volcano.sh/numa-topology-policy": "best-effort"}
    )
    assert _accepted(demand) == ()


def _accepted(demand: policy_annotations.Demand) -> tuple[str, ...]:
    accepted = [set(positions) for positions, _ in demand.rules()]
    return tuple(policy for position, policy in enumerate(ALL) if all(position in each for each in accepted))


def test_a_pod_without_annotations_asks_for_nothing() -> None:
    assert policy_annotations.demand({"other": "restricted"}).rules() == []


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ParseError, match=r"topowise\.io/numa-policy.*'strict'.*single-numa-node"):
        policy_annotations.demand({"topowise.io/numa-policy": "strict"})
