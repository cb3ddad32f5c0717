"""What is wrong is said once when it begins or changes, and once when it is over."""

from __future__ import annotations

import logging

import pytest

from topowise_exporter.conditions import Condition, Conditions

ABOUT = Condition.NO_KUBELET
SAID = ABOUT.value


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def test_a_problem_is_said_when_it_begins_and_changes_and_when_it_is_over(said: pytest.LogCaptureFixture) -> None:
    conditions = Conditions()
    for problem in ("no socket", "no socket", "no answer", "no answer"):
        conditions.set(ABOUT, problem)
    assert ABOUT in conditions
    conditions.clear(ABOUT)
    conditions.clear(ABOUT)
    assert ABOUT not in conditions
    assert said.messages == [SAID, SAID, "Recovered"]


def test_what_was_never_wrong_does_not_recover(said: pytest.LogCaptureFixture) -> None:
    conditions = Conditions()
    conditions.clear(ABOUT)
    conditions.note(ABOUT, ())
    assert said.messages == []


def test_of_several_problems_the_first_is_reported_with_the_number_of_the_rest(said: pytest.LogCaptureFixture) -> None:
    conditions = Conditions()
    conditions.note(ABOUT, ("one", "two", "three"))
    conditions.note(ABOUT, ("one",))
    conditions.note(ABOUT, ())
    assert [vars(record)["kv"].get("why") for record in said.records] == ["one (and 2 more)", "one", None]
    assert said.messages == [SAID, SAID, "Recovered"]


def test_a_problem_at_every_other_look_floods_no_log(said: pytest.LogCaptureFixture) -> None:
    conditions = Conditions()
    for _ in range(100):
        conditions.set(ABOUT, "limited")
        assert ABOUT in conditions
        conditions.clear(ABOUT)
        assert ABOUT not in conditions
    assert said.messages == [SAID, "Recovered"]
