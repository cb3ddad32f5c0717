"""The latest decisions, recorded from the answers of the verbs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from refusal_words import refusals
from scheduling import NoApi, Service, counts, pod, sent
from topowise import pods
from topowise_scheduler.dashboard import Decisions
from topowise_scheduler.dashboard.decisions import Decision
from topowise_scheduler.ledger.answers import Verdicts
from topowise_scheduler.report.predicted_annotation import ANNOTATION
from topowise_scheduler.serve.extender.binding import Binder
from topowise_scheduler.serve.extender.replies import Reply
from topowise_scheduler.verdicts.engine import Outcome
from topowise_scheduler.verdicts.refusals import Refusal


class Watched:
    """A service whose verbs report decisions to an observer."""

    def __init__(self, size: int = 3) -> None:
        self.service = Service()
        self.decisions = Decisions(size, lambda: 5.0)
        self.verbs = self.service.verbs(observer=self.decisions, scores_ahead=False)
        self.service.report(counts("n1", ("8", "8"), included=()))
        self.service.report(counts("n2", ("1", "1"), included=()))

    def ask(self, verb: str, document: dict[str, Any], *names: str) -> None:
        sent(getattr(self.verbs, verb)(json.dumps({"Pod": document, "NodeNames": names or ["n1", "n2"]}).encode()))

    def bind(self, name: str, node: str, error: str = "") -> None:
        self.decisions.bound(f"default/{name}", f"uid-{name}", node, error, 0.004)

    @property
    def last(self) -> Decision:
        return self.decisions.all()[0]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_pod_from_filter_to_bind(watched: Watched) -> None:
    watched.service.report(counts("n3", ("8", "1"), included=()))
    watched.ask("filter", pod("a", "4"), "n1", "n2", "n3")
    decision = watched.last
    assert (decision.pod, decision.at, decision.candidates, decision.fits, decision.outcome) == (
        "default/a",
        5.0,
        3,
        2,
        "fits",
    )
    assert decision.reasons == {Refusal.NOT_NOW: 1}
    assert decision.examples == {Refusal.NOT_NOW: ["n2"], "": ["n1", "n3"]}
    watched.ask("prioritize", pod("a", "4"), "n1", "n3")
    assert (decision.expected, decision.outcome, decision.filter_ms, decision.score_ms) == ("n1", "reserved", 1.5, 1.5)
    watched.bind("a", "n1")
    assert (decision.bound, decision.outcome, decision.bind_error, decision.bind_ms) == ("n1", "bound", "", 4.0)
    assert len(watched.decisions) == 1


def test_a_single_fitting_node_is_expected_at_once(watched: Watched) -> None:
    watched.ask("filter", pod("a", "4"))
    assert (watched.last.expected, watched.last.outcome) == ("n1", "reserved")


def test_a_refused_bind_and_a_pod_that_fits_nowhere(watched: Watched) -> None:
    watched.ask("filter", pod("a", "4"))
    watched.bind("a", "n1", "kubelet of n1 would refuse the pod now: x")
    assert watched.last.outcome == "bind refused"
    watched.ask("filter", pod("b", "9"))
    assert (watched.last.outcome, watched.last.reasons) == ("no room", {Refusal.NEVER: 2})


def test_the_most_frequent_of_many_reasons_are_kept(watched: Watched) -> None:
    """A refusal with a high number may be the most frequent."""
    kinds = list(Refusal)[:20]
    numbers = np.array([*kinds, *[kinds[-1]] * 5], np.int8)
    names = [f"n{number}" for number in range(len(numbers))]
    question = watched.service.question(pod("a", "4"), *names)
    refused = np.full(len(numbers), int(Outcome.UNSCHEDULABLE), np.int8)
    watched.decisions.filtered(question, Verdicts(refused, numbers, 0), 0.001)
    assert next(iter(watched.last.reasons.items())) == (kinds[-1], 6)
    assert watched.last.examples[kinds[-1]] == ["n19", "n20", "n21"]


def test_a_second_attempt_is_another_decision(watched: Watched) -> None:
    watched.ask("filter", pod("a", "9"))
    watched.ask("filter", pod("a", "4"))
    watched.bind("a", "n1")
    assert [decision.outcome for decision in watched.decisions.all()] == ["bound", "no room"]


def test_only_the_latest_decisions_are_kept(watched: Watched) -> None:
    for number in range(10):
        watched.ask("filter", pod(f"p{number}", "1"))
    assert [decision.pod for decision in watched.decisions.all()] == ["default/p9", "default/p8", "default/p7"]
    # A bind without a recorded decision is a separate line.
    watched.bind("p0", "n1")
    assert (watched.last.pod, watched.last.outcome, watched.last.fits) == ("default/p0", "bound", None)


def test_a_simulation_reserves_nothing(watched: Watched) -> None:
    body = {"Pod": pod("a", "4"), "Nodes": {"items": [{"metadata": {"name": "n1"}}]}}
    sent(watched.verbs.prioritize(json.dumps(body).encode()))
    assert (watched.last.outcome, len(watched.service.ledger.reservations)) == ("expected", 0)


def test_preemption(watched: Watched) -> None:
    for name in ("low", "low-too"):
        watched.service.put(pod(name, "8", node="n1", phase="Running"))
        # The pods start in sequence and long ago, so their placements are certain.
        watched.service.clock.now += 10
        watched.service.ledger.tick()
    high = pod("high", "8", priority=9)
    watched.ask("filter", high)
    body = json.dumps({"Pod": high, "NodeNameToMetaVictims": {"n1": None, "n2": None}}).encode()
    sent(asyncio.run(watched.verbs.preempt(body)))
    assert (watched.last.pod, watched.last.outcome, watched.last.victims_on) == ("default/high", "no room", 1)
    assert len(watched.decisions) == 1


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
def test_a_refused_request_is_a_separate_line(watched: Watched, verb: str) -> None:
    sent(watched.service.served(observer=watched.decisions)[verb].refuse("x" * 10_000))
    assert (watched.last.pod, watched.last.outcome, watched.last.problem) == ("", "error", "x" * 300)


def test_binds_are_recorded_too(watched: Watched) -> None:
    async def bind(not_ready: str | None) -> Reply:
        service = watched.service
        binder = Binder(NoApi(), service.ledger, service.records, lambda: not_ready, observer=watched.decisions)
        args = {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n1"}
        return await binder.bind(json.dumps(args).encode())

    watched.ask("filter", pod("a", "4"))
    reply = asyncio.run(bind("not yet listed: pods"))
    assert reply.problem == "not ready: not yet listed: pods"
    sent(reply)
    assert (watched.last.outcome, watched.last.bind_error) == ("bind refused", reply.problem)
    assert len(watched.decisions) == 1


def watched_pod(name: str, **fields: Any) -> pods.Pod:
    """A pod from the watch of a new process."""
    return pods.decode(json.dumps(pod(name, "4", **fields)).encode())


def scheduled(status: str, at: str, message: str = "") -> list[dict[str, str]]:
    return [{"type": "PodScheduled", "status": status, "lastTransitionTime": at, "message": message}]


EARLY, LATE = "1970-01-01T00:00:01Z", "1970-01-01T00:00:03Z"
PREDICTED = {ANNOTATION: '{"c":{"numa":[1]},"d":{"numa":[0,1]}}'}
BOUND = {"node": "n1", "annotations": PREDICTED, "conditions": scheduled("True", LATE)}


def test_decisions_of_earlier_processes_are_read_from_pods(watched: Watched) -> None:
    refusal = f"0/2 nodes are available: 2 {refusals.NOT_NOW}."
    watched.decisions.seen(watched_pod("bound", **BOUND))
    watched.decisions.seen(watched_pod("waits", conditions=scheduled("False", EARLY, refusal)))
    watched.decisions.seen(watched_pod("other", conditions=scheduled("False", LATE, "0/2 nodes are available.")))
    watched.decisions.seen(watched_pod("foreign", node="n1", conditions=scheduled("True", LATE)))
    newest, oldest = watched.decisions.all()
    assert (newest.pod, newest.outcome, newest.bound, newest.numa, newest.at) == (
        "default/bound",
        "bound",
        "n1",
        "0-1",
        3,
    )
    assert (oldest.pod, oldest.outcome, oldest.problem, oldest.at) == ("default/waits", "no room", refusal, 1)
    assert newest.is_from_pod
    # A later event of the pod updates its decision; afterwards decisions of the verbs win.
    watched.decisions.seen(watched_pod("waits", **BOUND))
    assert [(decision.pod, decision.outcome) for decision in watched.decisions.all()] == [
        ("default/bound", "bound"),
        ("default/waits", "bound"),
    ]
    watched.ask("filter", pod("late", "9"))
    watched.decisions.seen(watched_pod("late", conditions=scheduled("False", EARLY, refusal)))
    assert [decision.pod for decision in watched.decisions.all()] == ["default/late", "default/bound", "default/waits"]
    assert not watched.last.is_from_pod


def test_a_bound_pod_has_its_predicted_placement(watched: Watched) -> None:
    watched.ask("filter", pod("a", "4"))
    watched.bind("a", "n1")
    watched.decisions.seen(watched_pod("a", **BOUND))
    assert (watched.last.numa, watched.last.bind_ms, watched.last.is_from_pod) == ("0-1", 4.0, False)
    assert len(watched.decisions) == 1


@pytest.mark.parametrize("text", ["", "{}", "x", "[]", '{"c":{}}', '{"c":{"numa":["0"]}}', "[" * 9_000, "0" * 20_000])
def test_an_invalid_prediction_annotation_is_ignored(watched: Watched, text: str) -> None:
    watched.decisions.seen(watched_pod("a", **{**BOUND, "annotations": {ANNOTATION: text}}))
    assert len(watched.decisions) == 0


def test_a_refusal_of_a_kubelet_is_kept_separately_and_once(watched: Watched) -> None:
    failed = {"node": "n1", "phase": "Failed", "reason": "TopologyAffinityError"}
    watched.ask("filter", pod("a", "4"))
    watched.bind("a", "n1")
    for _ in range(2):
        watched.decisions.seen(watched_pod("a", **failed, startTime=LATE))
    assert (watched.last.outcome, watched.last.problem, watched.last.at) == (
        "kubelet refused",
        "TopologyAffinityError",
        5.0,
    )
    for number in range(5):
        watched.ask("filter", pod(f"p{number}", "1"))
    # New decisions replace old decisions, but refusals stay.
    assert [decision.pod for decision in watched.decisions.refused] == ["default/a"]
    for number in range(9):
        watched.decisions.seen(watched_pod(f"r{number}", **failed, startTime=f"1970-01-01T00:00:0{number % 3}Z"))
        watched.decisions.seen(watched_pod("odd", **failed, startTime="yesterday"))
    assert [decision.pod for decision in watched.decisions.refused] == ["default/odd", "default/a", "default/r8"]
    assert len(watched.decisions) == 3


def test_the_latest_of_many_pods_are_kept(watched: Watched) -> None:
    for number in (3, 1, 4, 1, 5, 2, 0):
        at = f"1970-01-01T00:00:0{number}Z"
        watched.decisions.seen(watched_pod(f"p{number}", **{**BOUND, "conditions": scheduled("True", at)}))
    assert [decision.pod for decision in watched.decisions.all()] == ["default/p5", "default/p4", "default/p3"]
    assert len(watched.decisions._latest) == 3
