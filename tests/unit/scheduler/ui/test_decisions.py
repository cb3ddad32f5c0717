"""What is kept of the last decisions, told by the answers themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduling import Service, counts, pod
from topowise_scheduler import refusals, strategies
from topowise_scheduler.cluster.watch import Budgets
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.extender.evictions import Evictions
from topowise_scheduler.extender.verbs import Verbs
from topowise_scheduler.ui import Decisions, Observed
from topowise_scheduler.ui.decisions import Decision


class Watched:
    """A service that is asked as the extender's HTTP face asks it."""

    def __init__(self, size: int = 3) -> None:
        self.service = Service()
        strategy = strategies.make("LeastAllocated", {}, Scoring())
        self.answers = Observed(self.service.ledger, self.service.records, strategy)
        self.decisions = self.answers.decisions = Decisions(size, lambda: 5.0)
        self.verbs = Verbs(self.answers, Evictions(self.service.ledger, self.answers, Budgets()), lambda: None)
        self.service.report(counts("n1", ("8", "8"), included=()))
        self.service.report(counts("n2", ("1", "1"), included=()))

    def ask(self, verb: str, document: dict[str, Any], *names: str) -> None:
        body = json.dumps({"Pod": document, "NodeNames": names or ["n1", "n2"]}).encode()
        answer = getattr(self.verbs, verb)(body)
        expected, noted = self.verbs.expected(), self.answers.take()
        self.decisions.keep(verb, noted, body, answer, 0.0015, "")
        if expected is not None:
            self.verbs.settle(expected)

    def bind(self, name: str, node: str, error: str = "") -> None:
        body = {"PodName": name, "PodNamespace": "default", "PodUID": f"uid-{name}", "Node": node}
        answer = json.dumps({"Error": error}).encode()
        self.decisions.keep("bind", None, json.dumps(body).encode(), answer, 0.004, "")

    @property
    def last(self) -> Decision:
        return self.decisions.all()[0]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_pod_from_filter_to_bind(watched: Watched) -> None:
    watched.service.report(counts("n3", ("8", "1"), included=()))
    watched.ask("filter", pod("a", "4"), "n1", "n2", "n3")
    one = watched.last
    assert (one.pod, one.at, one.asked, one.fits, one.outcome) == ("default/a", 5.0, 3, 2, "fits")
    assert one.reasons == {refusals.NOT_NOW: 1}
    assert one.examples == {refusals.NOT_NOW: ["n2"], "": ["n1", "n3"]}
    watched.ask("prioritize", pod("a", "4"), "n1", "n3")
    assert (one.expected, one.outcome, one.filter_ms, one.score_ms) == ("n1", "claimed", 1.5, 1.5)
    watched.bind("a", "n1")
    assert (one.bound, one.outcome, one.bind_error, one.bind_ms) == ("n1", "bound", "", 4.0)
    assert len(watched.decisions) == 1


def test_one_node_left_is_expected_at_once(watched: Watched) -> None:
    watched.ask("filter", pod("a", "4"))
    assert (watched.last.expected, watched.last.outcome) == ("n1", "claimed")


def test_a_refused_bind_and_no_room(watched: Watched) -> None:
    watched.ask("filter", pod("a", "4"))
    watched.bind("a", "n1", "kubelet of n1 would refuse the pod now: x")
    assert watched.last.outcome == "bind refused"
    watched.ask("filter", pod("b", "9"))
    assert (watched.last.outcome, watched.last.reasons) == ("no room", {refusals.NEVER: 2})


def test_a_second_attempt_is_another_decision(watched: Watched) -> None:
    watched.ask("filter", pod("a", "9"))
    watched.ask("filter", pod("a", "4"))
    watched.bind("a", "n1")
    assert [one.outcome for one in watched.decisions.all()] == ["bound", "no room"]


def test_only_the_last_are_kept(watched: Watched) -> None:
    for number in range(10):
        watched.ask("filter", pod(f"p{number}", "1"))
    assert [one.pod for one in watched.decisions.all()] == ["default/p9", "default/p8", "default/p7"]
    # A bind of one that is forgotten is a line of its own.
    watched.bind("p0", "n1")
    assert (watched.last.pod, watched.last.outcome, watched.last.fits) == ("default/p0", "bound", None)


def test_one_is_found_by_its_number_while_it_is_kept(watched: Watched) -> None:
    watched.ask("filter", pod("a", "2"))
    number = watched.last.number
    found = watched.decisions.get(str(number))
    assert found is not None
    assert found.pod == "default/a"
    for name in "bcd":
        watched.ask("filter", pod(name, "2"))
    assert watched.decisions.get(str(number)) is None
    assert watched.decisions.get("nonsense") is None


def test_a_simulation_claims_nothing(watched: Watched) -> None:
    body = {"Pod": pod("a", "4"), "Nodes": {"items": [{"metadata": {"name": "n1"}}]}}
    raw = json.dumps(body).encode()
    answer = watched.verbs.prioritize(raw)
    expected, noted = watched.verbs.expected(), watched.answers.take()
    watched.decisions.keep("prioritize", noted, raw, answer, 0.001, "")
    assert expected is not None
    watched.verbs.settle(expected)
    assert (watched.last.outcome, watched.service.ledger.open_claims) == ("expected", 0)


def test_preemption(watched: Watched) -> None:
    watched.ask("filter", pod("high", "9"))
    body = json.dumps({"Pod": pod("high", "9", priority=9), "NodeNameToMetaVictims": {"n1": None, "n2": None}}).encode()
    answer = b'{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"low"}],"NumPDBViolations":0}}}'
    watched.decisions.keep("preempt", None, body, answer, 0.001, "")
    assert (watched.last.pod, watched.last.outcome, watched.last.victims_on) == ("default/high", "no room", 1)
    assert len(watched.decisions) == 1


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"PodUID":7}', b"\xff\x00"])
def test_whatever_was_sent_is_survived(watched: Watched, verb: str, body: bytes) -> None:
    watched.decisions.keep(verb, None, body, b"{", 0.0, "")
    watched.decisions.keep(verb, None, body, b"", 0.0, "x" * 10_000)
    assert all(len(one.problem) <= 300 for one in watched.decisions.all())


def test_the_last_answer_is_taken_once(watched: Watched) -> None:
    watched.answers.question(watched_pod(), ["n1"], is_simulation=True)
    assert watched.answers.take() is not None
    assert watched.answers.take() is None


def watched_pod() -> Any:
    from topowise import pods

    return pods.decode(json.dumps(pod("a")).encode())
