"""The extender's verbs: exactly Go's JSON, every node in every answer, and no exception."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from refusal_words import refusals
from scheduling import Service, counts, pod, sent
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.overlay.preemption import Choice
from topowise_scheduler.serve.extender import verbs as extender_verbs
from topowise_scheduler.serve.extender.evictions import Evictions
from topowise_scheduler.serve.extender.replies import REFUSED_BECAUSE, BadRequestError, Reply
from topowise_scheduler.serve.extender.verbs import Verbs


@pytest.fixture
def service() -> Service:
    started = Service()
    for name, available in (("empty", "8"), ("half", "4"), ("full", "0")):
        started.report(counts(name, available, included=()))
    return started


@pytest.fixture
def answering(service: Service) -> Verbs:
    return service.verbs()


def body(document: dict[str, Any], names: list[str] | None, nodes: Any = None) -> bytes:
    return msgspec.json.encode({"Pod": document, "Nodes": nodes, "NodeNames": names})


def run(verb: Callable[[bytes], Coroutine[Any, Any, Reply]]) -> Callable[[bytes], Reply]:
    return lambda request: asyncio.run(verb(request))


def read(reply: Reply) -> Any:
    """Returns the answer without the verb's follow-up work."""
    return msgspec.json.decode(reply.body)


_OTHER = refusals.OTHER_POLICY


def test_filter_keeps_the_order_and_names_every_node(answering: Verbs) -> None:
    answer = read(answering.filter(body(pod("p", "4"), ["half", "full", "unknown-node", "empty"])))
    assert answer == {
        "Nodes": None,
        "NodeNames": ["half", "unknown-node", "empty"],
        "FailedNodes": {"full": refusals.NOT_NOW},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_a_node_that_the_cluster_does_not_have_is_logged_once(
    answering: Verbs, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.ledger.reports.put_node("new")
    for verb in (answering.filter, answering.filter, answering.prioritize):
        sent(verb(body(pod("p"), ["empty", "new", "unknown-node"])))
    assert [entry.__dict__["kv"]["node"] for entry in caplog.records] == ["unknown-node"]


def test_a_pod_that_fits_no_empty_node_is_unresolvable(answering: Verbs) -> None:
    answer = read(answering.filter(body(pod("p", "9"), ["empty", "full"])))
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == {}
    assert answer["FailedAndUnresolvableNodes"] == {"empty": refusals.NEVER, "full": refusals.NEVER}


def test_refusals_do_not_change_when_amounts_do(answering: Verbs, service: Service) -> None:
    before = answering.filter(body(pod("p", "4"), ["full"])).body
    service.report(counts("full", "3", included=()))
    assert answering.filter(body(pod("p", "4"), ["full"])).body == before


def test_whole_nodes_come_back_as_they_came_and_leave_no_trace(answering: Verbs, service: Service) -> None:
    items = [{"metadata": {"name": name, "labels": {"x": "y"}}, "unknown": 1} for name in ("full", "empty")]
    answer = sent(answering.filter(body(pod("p", "4"), None, {"metadata": {}, "items": items})))
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == [items[1]]
    assert len(service.ledger.reservations) == 0


def test_the_best_node_is_reserved_until_the_pod_is_asked_about_again(answering: Verbs, service: Service) -> None:
    sent(answering.prioritize(body(pod("a", "4"), ["empty", "half"])))
    assert service.free("empty") == [4]
    answer = read(answering.filter(body(pod("b", "8"), ["empty"])))
    assert list(answer["FailedNodes"]) == ["empty"]
    answering.filter(body(pod("a", "4"), ["empty", "half"]))
    assert service.free("empty") == [8]


class TestScoresThatAreReadyBeforeTheyAreAskedFor:
    """kube-scheduler runs its own plug-ins between filter and prioritize; meanwhile the scores are computed."""

    ALL = ("half", "full", "unknown-node", "empty")

    def ask(self, answering: Verbs, names: list[str], **fields: Any) -> Reply:
        sent(answering.filter(body(pod("p", "4", uid="uid-p", resourceVersion="7"), list(self.ALL))))
        return answering.prioritize(body(pod("p", "4", uid="uid-p", **fields), names))

    @pytest.mark.parametrize("version", ["7", "8"], ids=["same pod", "pod has changed"])
    @pytest.mark.parametrize(
        "names",
        [
            ["half", "unknown-node", "empty"],
            ["empty", "half", "unknown-node"],
            ["half", "empty"],
            ["half", "empty", "new"],
        ],
        ids=["as left by filter", "in another order", "fewer", "others"],
    )
    def test_they_are_what_prioritize_would_compute(self, service: Service, names: list[str], version: str) -> None:
        ahead = read(self.ask(service.verbs(), names, resourceVersion=version))
        assert ahead == read(self.ask(service.verbs(scores_ahead=False), names, resourceVersion=version))
        assert [score["Host"] for score in ahead] == names

    def test_the_best_node_is_reserved_all_the_same(self, answering: Verbs, service: Service) -> None:
        sent(self.ask(answering, ["empty", "half", "unknown-node"], resourceVersion="7"))
        assert len(service.ledger.reservations) == 1

    def test_they_serve_one_request(self, answering: Verbs, service: Service) -> None:
        names = ["half", "unknown-node", "empty"]
        first = read(self.ask(answering, names, resourceVersion="7"))
        service.report(counts("half", "8", included=()))
        again = read(answering.prioritize(body(pod("p", "4", uid="uid-p", resourceVersion="7"), names)))
        assert again != first

    def test_they_are_not_used_late(self, answering: Verbs, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        names = ["half", "unknown-node", "empty"]
        decided = pod("p", "4", uid="uid-p", resourceVersion="7")
        answers = []
        for valid_s in (10.0, -1.0):
            service.report(counts("half", "4", included=()))
            monkeypatch.setattr(extender_verbs, "_VALID_S", valid_s)
            sent(answering.filter(body(decided, list(self.ALL))))
            service.report(counts("half", "8", included=()))
            answers.append(read(answering.prioritize(body(decided, names))))
        assert answers[0] != answers[1]


def test_a_filter_of_another_pod_does_not_remove_prefetched_scores(
    answering: Verbs, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two schedulers, or two profiles, may decide at the same time. Scores of four pods are kept."""
    monkeypatch.setattr(extender_verbs, "_VALID_S", 10.0)
    nodes = ["half", "full", "unknown-node", "empty"]
    decided = [pod(name, "1", uid=f"uid-{name}", resourceVersion="7") for name in "abcdef"]
    for manifest in decided:
        left = sent(answering.filter(body(manifest, nodes)))["NodeNames"]
    service.report(counts("half", "8", included=()))
    fresh = read(service.verbs(scores_ahead=False).prioritize(body(decided[0], left)))
    answers = [read(answering.prioritize(body(manifest, left))) for manifest in decided]
    assert [answer == fresh for answer in answers] == [True, True, False, False, False, False]
    monkeypatch.setattr(extender_verbs, "_MAX_BYTES", 1)
    sent(answering.filter(body(decided[0], nodes)))
    assert not answering._prefetched


def test_a_single_remaining_node_is_reserved_as_no_prioritize_follows(answering: Verbs, service: Service) -> None:
    sent(answering.filter(body(pod("a", "8"), ["empty", "half"])))
    assert service.free("empty") == [0]


@pytest.mark.parametrize(
    ("annotations", "passing", "refused"),
    [
        ({"topowise.io/numa-policy": "restricted"}, ["empty"], {"none": refusals.WEAKER_POLICY}),
        ({"volcano.sh/numa-topology-policy": "restricted"}, [], {"empty": _OTHER, "none": _OTHER}),
        ({"volcano.sh/numa-topology-policy": "none"}, ["empty", "none"], {}),
    ],
)  # fmt: skip
def test_a_node_whose_policy_is_not_what_the_pod_asks_for_is_refused(
    answering: Verbs, service: Service, annotations: dict[str, str], passing: list[str], refused: dict[str, str]
) -> None:
    service.report(counts("none", "8", policy="none", included=()))
    answer = read(answering.filter(body(pod("p", annotations=annotations), ["empty", "none"])))
    assert answer["NodeNames"] == passing
    assert answer["FailedAndUnresolvableNodes"] == refused


@pytest.mark.parametrize(
    ("request_body", "named"),
    [
        (b"", "ExtenderArgs"),
        (b"{", "ExtenderArgs"),
        (b"[]", "ExtenderArgs"),
        (b'{"Pod": null, "NodeNames": []}', "Pod"),
        (b'{"Pod": {"metadata": {}, "spec": {}}}', "neither NodeNames nor Nodes"),
        (b'{"Pod": {"metadata": {}, "spec": {}}, "NodeNames": [1]}', "NodeNames"),
        (b'{"Pod": {"metadata": {}, "spec": {}}, "NodeNames": ["\xff"]}', "ExtenderArgs"),
        (b'{"Pod":{"metadata":{},"spec":{},"x":' + b"[" * 200_000, "ExtenderArgs"),
    ],
)
def test_a_malformed_request_is_named(answering: Verbs, request_body: bytes, named: str) -> None:
    with pytest.raises(BadRequestError, match=named):
        answering.filter(request_body)


def test_before_the_first_sync_there_is_no_answer(service: Service) -> None:
    waiting = service.verbs(not_ready=lambda: "not yet listed: nodes")
    for verb in (waiting.filter, waiting.prioritize, run(waiting.preempt)):
        with pytest.raises(BadRequestError, match="not yet listed"):
            verb(body(pod("p"), ["empty"]))
    assert read(service.served()["filter"].refuse("x")) == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "x",
    }


@pytest.mark.parametrize("broken", [pod("p", "4 cores"), pod("p", annotations={"topowise.io/numa-policy": "strict"})])
def test_a_pod_that_cannot_be_read_is_an_error_not_a_crash(answering: Verbs, broken: dict[str, Any]) -> None:
    with pytest.raises(REFUSED_BECAUSE, match=r"4 cores|strict"):
        answering.filter(body(broken, ["empty"]))


class TestPreempt:
    @pytest.fixture(autouse=True)
    def _occupied(self, service: Service) -> None:
        service.report(counts("n1", ("8", "8"), included=()))
        for name, cpu, priority in (("low", "6", 1), ("small", "3", 1), ("high", "5", 9)):
            # Pods are bound in sequence and long ago, so their placement is certain.
            service.put(pod(name, cpu, node="n1", priority=priority, phase="Running"))
            service.clock.now += 10
            service.ledger.tick()

    def ask(self, answering: Verbs, document: dict[str, Any], proposed: dict[str, Any]) -> Any:
        return read(
            run(answering.preempt)(
                msgspec.json.encode({"Pod": document, "NodeNameToVictims": None, "NodeNameToMetaVictims": proposed})
            )
        )["NodeNameToMetaVictims"]

    def test_victims_are_chosen_where_none_are_proposed(self, answering: Verbs, service: Service) -> None:
        assert service.free("n1") == [2, 0]
        answer = self.ask(answering, pod("p", "5", priority=5), {"n1": {"Pods": None, "NumPDBViolations": 0}})
        assert answer == {"n1": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 0}}

    def test_a_victim_is_added_where_the_proposed_victim_frees_the_wrong_zone(self, answering: Verbs) -> None:
        answer = self.ask(answering, pod("p", "8", priority=5), {"n1": {"Pods": [{"UID": "uid-small"}]}})
        assert {victim["UID"] for victim in answer.get("n1", {"Pods": []})["Pods"]} >= {"uid-small", "uid-low"}

    def test_a_node_where_no_eviction_helps_is_dropped(self, answering: Verbs) -> None:
        assert self.ask(answering, pod("p", "9", priority=5), {"n1": {"Pods": [{"UID": "uid-low"}]}}) == {}
        assert self.ask(answering, pod("p", "8", priority=0), {"n1": {"Pods": []}}) == {}

    def test_a_node_without_a_report_is_kept_as_proposed(self, answering: Verbs) -> None:
        answer = self.ask(answering, pod("p", priority=5), {"x": {"Pods": [{"UID": "u"}], "NumPDBViolations": 2}})
        assert answer == {"x": {"Pods": [{"UID": "u"}], "NumPDBViolations": 2}}

    def test_no_pod_is_evicted_from_a_node_that_the_pod_may_not_have(self, answering: Verbs, service: Service) -> None:
        strict = pod("p", "5", priority=5, annotations={"volcano.sh/numa-topology-policy": "restricted"})
        assert self.ask(answering, strict, {"n1": {"Pods": [{"UID": "uid-low"}]}}) == {}
        record = service.put(pod("pending", "5"))
        service.ledger.gates.quarantine.put(record.shape, "n1", service.clock())
        assert self.ask(answering, pod("p", "5", priority=5), {"n1": {"Pods": [{"UID": "uid-low"}]}}) == {}

    def test_whole_pods_are_answered_by_uid(self, answering: Verbs) -> None:
        request = {"Pod": pod("p", "5", priority=5), "NodeNameToVictims": {"n1": {"Pods": [pod("low", "6")]}}}
        answer = read(run(answering.preempt)(msgspec.json.encode(request)))
        assert answer["NodeNameToMetaVictims"]["n1"]["Pods"] == [{"UID": "uid-low"}]


def test_a_node_that_there_was_no_time_to_look_at_is_looked_at_the_next_times() -> None:
    """kube-scheduler proposes the same nodes in the same order each time that it tries the pod."""
    service = Service()
    names = [f"n{number}" for number in range(5)]
    for name in names:
        service.report(counts(name, "0", included=[name], placed={name: 0}))
        service.put(pod(name, "8", node=name, priority=0 if name == names[-1] else 9), is_news=False)
    evictions = Evictions(service.ledger, service.answers, Budgets(), seconds=0.0)
    question = service.question(pod("p", "4", priority=5), *names)
    proposed = dict.fromkeys(names, Choice((), 0))
    choices = [set(asyncio.run(evictions.choose(question, proposed))) for _ in range(200)]
    assert {"n4"} in choices
    assert set() in choices
