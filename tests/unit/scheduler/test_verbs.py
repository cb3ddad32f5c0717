"""The extender's verbs: exactly Go's JSON, every node in every answer, and never an accident."""

from typing import Any

import msgspec
import pytest

from topowise import nrt
from topowise_scheduler.answers import Answers
from topowise_scheduler.cluster.ledger import Ledger
from topowise_scheduler.engine import fit, verdict
from topowise_scheduler.extender import verbs
from topowise_scheduler.extender.verbs import BadRequestError, Verbs


def topology(name: str, available: str) -> nrt.NodeResourceTopology:
    cpu = {"name": "cpu", "capacity": "8", "allocatable": "8", "available": available}
    document = {
        "metadata": {"name": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [{"name": "node-0", "type": "Node", "resources": [cpu]}],
    }
    return nrt.decode(msgspec.json.encode(document))


def pod(cpu: str, **meta: str) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", **meta},
        "spec": {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]},
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    }


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger(fit.judge)
    for name, available in (("empty", "8"), ("half", "4"), ("full", "0")):
        made.put_topology(topology(name, available))
    return made


@pytest.fixture
def answering(ledger: Ledger) -> Verbs:
    return Verbs(Answers(ledger, {"cpu": 1, "memory": 1}), lambda: None)


def body(cpu: str, names: list[str] | None, nodes: Any = None, **meta: str) -> bytes:
    return msgspec.json.encode({"Pod": pod(cpu, **meta), "Nodes": nodes, "NodeNames": names})


def test_filter_keeps_the_order_and_names_every_node(answering: Verbs) -> None:
    answer = msgspec.json.decode(answering.filter(body("4", ["half", "full", "stranger", "empty"])))
    assert answer == {
        "Nodes": None,
        "NodeNames": ["half", "stranger", "empty"],
        "FailedNodes": {"full": verdict.NO_ZONE_FOR_CONTAINER},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_a_node_that_the_cluster_does_not_have_is_noted_once(answering: Verbs, ledger: Ledger) -> None:
    ledger.known = {"new"}
    for _ in range(2):
        answering.filter(body("4", ["empty", "new", "stranger"], uid=""))
    assert answering.take_notes() == ["stranger"]
    assert answering.take_notes() == []


def test_what_no_empty_node_could_hold_is_unresolvable(answering: Verbs) -> None:
    answer = msgspec.json.decode(answering.filter(body("9", ["empty", "full"])))
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == {}
    assert set(answer["FailedAndUnresolvableNodes"]) == {"empty", "full"}


def test_refusals_do_not_change_when_amounts_do(answering: Verbs, ledger: Ledger) -> None:
    before = answering.filter(body("4", ["full"]))
    ledger.put_topology(topology("full", "3"))
    assert answering.filter(body("4", ["full"])) == before


def test_whole_nodes_come_back_as_they_came(answering: Verbs) -> None:
    items = [{"metadata": {"name": name, "labels": {"x": "y"}}, "unknown": 1} for name in ("full", "empty")]
    answer = msgspec.json.decode(answering.filter(body("4", None, {"metadata": {}, "items": items})))
    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == [items[1]]


def test_no_names_is_not_everything(answering: Verbs) -> None:
    assert msgspec.json.decode(answering.filter(body("4", [])))["NodeNames"] == []


def test_prioritize_answers_a_bare_array_of_integers(answering: Verbs) -> None:
    answer = msgspec.json.decode(answering.prioritize(body("2", ["empty", "half", "stranger"])))
    assert answer == [{"Host": "empty", "Score": 10}, {"Host": "half", "Score": 3}, {"Host": "stranger", "Score": 0}]
    assert all(type(one["Score"]) is int for one in answer)


def test_verdicts_are_kept_for_the_pod_only_while_nothing_changes(answering: Verbs, ledger: Ledger) -> None:
    ask = body("4", ["half"], resourceVersion="7")
    assert msgspec.json.decode(answering.filter(ask))["NodeNames"] == ["half"]
    ledger.put_topology(topology("half", "1"))
    assert msgspec.json.decode(answering.filter(ask))["NodeNames"] == []


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (b"", "ExtenderArgs"),
        (b"{", "ExtenderArgs"),
        (b"[]", "ExtenderArgs"),
        (b'{"Pod": null, "NodeNames": []}', "Pod"),
        (b'{"Pod": {"metadata": {}, "spec": {}}}', "neither NodeNames nor Nodes"),
        (b'{"Pod": {"metadata": {}, "spec": {}}, "NodeNames": [1]}', "NodeNames"),
        (b'{"Pod": {"metadata": {}, "spec": {}}, "NodeNames": ["\xff"]}', "ExtenderArgs"),
    ],
)
def test_a_malformed_request_is_named(answering: Verbs, sent: bytes, named: str) -> None:
    with pytest.raises(BadRequestError, match=named):
        answering.filter(sent)


def test_before_the_first_sync_there_is_no_answer(ledger: Ledger) -> None:
    waiting = Verbs(Answers(ledger, {}), lambda: "not yet listed: nodes")
    with pytest.raises(BadRequestError, match="not yet listed"):
        waiting.filter(body("4", ["empty"]))
    assert msgspec.json.decode(verbs.refuse_filter("x")) == {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "x",
    }


def test_a_pod_with_an_impossible_quantity_is_an_error_not_a_crash(answering: Verbs) -> None:
    broken = body("4 cores", ["empty"])
    with pytest.raises(verbs.REFUSED_BECAUSE, match="4 cores"):
        answering.filter(broken)


def test_explain_tells_a_verdict_a_score_and_words_for_each_node(answering: Verbs) -> None:
    answer = msgspec.json.decode(answering.explain(body("4", ["empty", "full"])))
    assert [(one["Host"], one["Fits"]) for one in answer] == [("empty", True), ("full", False)]
    assert "node 0 has cpu 0" in answer[1]["Detail"]


def test_a_request_nested_without_end_is_refused(answering: Verbs) -> None:
    with pytest.raises(BadRequestError, match="not ExtenderArgs"):
        answering.filter(b'{"Pod":{"metadata":{},"spec":{},"x":' + b"[" * 200_000)
