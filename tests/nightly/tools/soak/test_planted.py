"""Defects that are planted between the service and kube-scheduler are found, by whatever text they hide behind.

Each is played on the same clusters as the service without it, of which nothing is left without a cause.
"""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest

from refusal_words import refusals
from soak import World, play
from soak.edge import Alter, Answer
from soak.world import Plant

# Seeds of short runs; each has nodes on which pods run in sequence.
SEEDS = (4, 110003)
PODS = 24
AFTER_S = 10.0
TEXTS = [
    refusals.UNCERTAIN,
    refusals.UNCONFIRMED,
    refusals.QUARANTINED,
    refusals.TOO_SLOW,
    refusals.NOT_NOW,
    refusals.OUT_OF,
]


def after_each(event: str, text: str) -> Plant:
    """A node refuses all pods for ten seconds after an event of its history, with the given text."""

    def plant(world: World) -> Alter:
        def is_closed(name: str) -> bool:
            since = asyncio.get_running_loop().time() - AFTER_S
            history = world.fleet.nodes[name].lifecycle.history
            return any(at > since and text_of_event.endswith(event) for at, text_of_event in history)

        def alter(answer: Answer) -> Answer:
            closed = {name: text for name in answer.kept if is_closed(name)}
            remaining = tuple(name for name in answer.kept if name not in closed)
            return msgspec.structs.replace(answer, kept=remaining, refused={**answer.refused, **closed})

        return alter

    return plant


def at_random(world: World) -> Alter:
    """Every eighth answer refuses all nodes, with random texts."""
    random = Random(world.seed)

    def alter(answer: Answer) -> Answer:
        if not answer.kept or random.random() > 0.125:
            return answer
        drawn = {name: random.choice(TEXTS) for name in answer.kept}
        return msgspec.structs.replace(answer, kept=(), refused={**answer.refused, **drawn})

    return alter


def is_found(plant: Plant) -> bool:
    """Whether a cluster has an answer without a cause."""
    return any(play(seed, pods=PODS, plant=plant).kept_waiting[""] for seed in SEEDS)


def test_the_same_clusters_without_a_defect_pass() -> None:
    decisions = 0
    for seed in SEEDS:
        tally = play(seed, pods=PODS)
        assert not tally.unexplained, tally.evidence
        decisions += tally.decisions
    assert decisions > 50


@pytest.mark.parametrize("text", TEXTS)
def test_a_node_that_refuses_all_pods_for_a_while_is_found(text: str) -> None:
    """After each pod that was decided for it."""
    assert is_found(after_each(" decided", text))


@pytest.mark.parametrize("text", [refusals.NOT_NOW, refusals.OUT_OF])
def test_a_node_that_keeps_resources_of_ended_pods_is_found(text: str) -> None:
    """A pod that has just ended is a cause only if it would be in the way."""
    assert is_found(after_each(" ended", text))


def test_answers_at_random_are_found() -> None:
    assert is_found(at_random)
