"""Pods that come in the order in which they were nominated are what they were to all others: nothing is asked again."""

from __future__ import annotations

from unittest import mock

import msgspec
import pytest

from ledger_check import check_ledger
from nominating import Nominating
from scheduling import counts, pod, sent
from topowise_scheduler.kubelet import Kubelet


@pytest.fixture
def made() -> Nominating:
    """Three pods that are nominated for n1."""
    found = Nominating("8")
    for name in "abc":
        found.put(name, "2")
    assert found.write_all() == dict.fromkeys("abc", "n1")
    return found


def asked(made: Nominating, name: str) -> list[str]:
    """kube-scheduler's question about its nominated node."""
    body = {"Pod": pod(name, **made.pods[name]), "Nodes": None, "NodeNames": ["n1"]}
    found: list[str] = sent(made.service.verbs().filter(msgspec.json.encode(body)))["NodeNames"]
    return found


def bind(made: Nominating, name: str) -> None:
    record = made.ledger.remembered(f"uid-{name}")
    assert record is not None
    assert record.needs is not None
    assert made.ledger.reservations.assume(record, record.needs, "n1") is None
    made.bind(name, "n1")
    check_ledger(made.ledger)


def test_neither_the_question_nor_the_bind_asks_the_model(made: Nominating) -> None:
    changes = made.ledger.node_states.changes
    with mock.patch.object(Kubelet, "admit_view", side_effect=AssertionError("asked")):
        for name in "abc":
            assert asked(made, name) == ["n1"]
    check_ledger(made.ledger)
    assert made.ledger.node_states.changes == changes
    for name in "abc":
        bind(made, name)
    assert [one.is_honoured for one in made.ledger.nominations.results] == [True] * 3


def test_out_of_turn_it_is_looked_at_again(made: Nominating) -> None:
    assert asked(made, "c") == ["n1"]
    node_state = made.ledger.node_states.of("n1")
    assert node_state is not None
    assert not node_state.is_as_judged("uid-a")
    assert asked(made, "a") == ["n1"]
    bind(made, "c")
    bind(made, "a")
    assert made.service.free("n1") == [2]


@pytest.mark.parametrize("by_us", [True, False])
def test_others_reckon_with_those_that_we_have_nominated(*, by_us: bool) -> None:
    """They come soon, and may lie elsewhere than predicted. For whom kube-scheduler evicts, comes when those end."""
    made = Nominating()
    made.service.report(counts("n1", ("4", "4"), allocatable="4", included=(), version="1"))
    made.node("n1")
    if by_us:
        made.put("a", "3")
        assert made.write() == ("a", "n1")
    else:
        made.put("a", "3", nominatedNodeName="n1")
    node_state = made.ledger.node_states.of("n1")
    assert node_state is not None
    assert len(node_state.uncertain(made.clock.now)) == by_us
