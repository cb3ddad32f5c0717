"""Every answer names every node of the question: as fitting, or as refused with a reason. kube-scheduler reports no
reason for any other node."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple, cast

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from claim_objects import ClaimService, claiming
from crowds import many_containers
from examples import examples
from scheduling import Service, counts, exact, kubelet, pod, sent
from steering_pods import marked, requiring
from topowise.wire import scoring_pb2
from topowise_scheduler.ledger.pods.records import MAX_CONTAINERS
from topowise_scheduler.serve import grpc_api
from volcano import Volcano

FREE = (("8", "8"), ("8", "0"), ("4", "4"), ("3", "0"), ("0", "0"))
PREFERENCE = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}}
PODS: dict[str, dict[str, Any]] = {
    "small": pod("new", "1"),
    "medium": pod("new", "4"),
    "zone": pod("new", "8"),
    "wide": pod("new", "12"),
    "too wide": pod("new", "40"),
    "restricted": pod("new", "4", annotations={"topowise.io/numa-policy": "restricted"}),
    "indifferent": pod("new", containers=[{"name": "c", "resources": {}}]),
    "preferring": pod("new", "4", affinity=PREFERENCE),
    "gang": pod("new", "4", schedulingGroup={"podGroupName": "wide"}),
    "marked": marked("new"),
    "requiring": requiring("new", 1),
    "claiming": claiming("new", "2", "claim"),
    "claiming nothing known": claiming("new", "2", "late"),
    "near its claim": claiming("new", "2", "claim", alignment="require"),
    "large": many_containers(MAX_CONTAINERS + 1),
}


class Node(NamedTuple):
    """A node of the question."""

    free: tuple[str, str] | None
    policy: str
    has_object: bool
    zone: str
    is_tainted: bool
    occupant: str
    has_refused: bool


class Setup(NamedTuple):
    scores_ahead: bool
    has_claims: bool
    markers: int | None


NODES = st.builds(
    Node,
    free=st.sampled_from((*FREE, None)),
    policy=st.sampled_from(("single-numa-node", "single-numa-node", "restricted", "none")),
    has_object=st.sampled_from((True, True, True, False)),
    zone=st.sampled_from(("a", "a", "b")),
    is_tainted=st.sampled_from((False, False, False, True)),
    occupant=st.sampled_from(("", "", "", "running", "nominated")),
    has_refused=st.sampled_from((False, False, False, True)),
)
SETUPS = st.builds(
    Setup,
    scores_ahead=st.booleans(),
    has_claims=st.booleans(),
    markers=st.sampled_from((None, 0, 512)),
)
EXAMPLES = settings(
    max_examples=examples(24),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
A_CLUSTER = given(
    st.lists(NODES, min_size=1, max_size=8), SETUPS, st.sampled_from(sorted(PODS)), st.sampled_from((0, 5))
)

EMPTY = Node(("8", "0"), "single-numa-node", True, "a", False, "", False)
DEFAULT = Setup(True, False, 512)


def made(nodes: dict[str, Node], setup: Setup) -> Service:
    service = (
        ClaimService(markers=setup.markers)
        if setup.has_claims
        else Service(steers=setup.markers is not None, markers=lambda name: setup.markers)
    )
    if isinstance(service, ClaimService):
        service.put_claim("claim")
    for name, node in nodes.items():
        if node.has_object:
            taints = [{"key": "old", "effect": "PreferNoSchedule"}] if node.is_tainted else []
            service.put_node(name, {"taints": taints}, labels={"topology.kubernetes.io/zone": node.zone})
        if node.free is not None:
            included = [f"on-{name}"] if node.occupant == "running" else []
            service.report(counts(name, node.free, policy=node.policy, included=included))
        if isinstance(service, ClaimService) and node.has_object and node.zone == "a":
            service.put_devices(name, 0, 1)
        if node.occupant == "running":
            service.put(pod(f"on-{name}", "4", node=name, phase="Running"), is_news=False)
        elif node.occupant == "nominated":
            service.put(pod(f"on-{name}", "4", nominatedNodeName=name))
        if node.has_refused:
            service.put(pod(f"refused-{name}", "4", node=name, phase="Failed", reason="TopologyAffinityError"))
    return service


def wanted(kind: str, priority: int) -> dict[str, Any]:
    document = json.loads(json.dumps(PODS[kind]))
    document["metadata"] |= {"name": "new", "uid": "uid-new", "resourceVersion": "1"}
    document["spec"]["priority"] = priority
    return document


def asked(document: dict[str, Any], names: list[str]) -> bytes:
    return msgspec.json.encode({"Pod": document, "Nodes": None, "NodeNames": names})


def asked_with_nodes(document: dict[str, Any], names: list[str]) -> bytes:
    items = [{"metadata": {"name": name}} for name in names]
    return msgspec.json.encode({"Pod": document, "Nodes": {"items": items}, "NodeNames": None})


def named(answer: Any) -> tuple[list[str], list[str]]:
    """Returns the fitting and the refused nodes of an answer to filter, which has a reason for each refusal."""
    assert answer["Error"] == ""
    if answer["Nodes"] is None:
        fitting = answer["NodeNames"]
    else:
        fitting = [item["metadata"]["name"] for item in answer["Nodes"]["items"]]
    refused = [*answer["FailedNodes"].items(), *answer["FailedAndUnresolvableNodes"].items()]
    assert all(reason for _, reason in refused)
    names = [name for name, _ in refused]
    assert len({*fitting, *names}) == len(fitting) + len(names)
    return fitting, names


def by_name(nodes: list[Node]) -> dict[str, Node]:
    return {f"n{number}": node for number, node in enumerate(nodes, start=1)}


# Nodes that fit only without their nominated pod of a lower priority have no score.
@example([EMPTY] * 4 + [EMPTY._replace(occupant="nominated")] * 2, DEFAULT, "zone", 5)
@EXAMPLES
@A_CLUSTER
def test_filter_and_prioritize(listed: list[Node], setup: Setup, kind: str, priority: int) -> None:
    nodes, document = by_name(listed), wanted(kind, priority)
    service = made(nodes, setup)
    verbs, names = service.verbs(scores_ahead=setup.scores_ahead), list(nodes)
    fitting, refused = named(sent(verbs.filter(asked(document, names))))
    assert {*fitting, *refused} == nodes.keys()
    if fitting:
        scores = sent(verbs.prioritize(asked(document, fitting)))
        assert [score["Host"] for score in scores] == fitting
        assert all(0 <= score["Score"] <= 10 for score in scores)
    again, refused_again = named(sent(verbs.filter(asked(document, names))))
    assert {*again, *refused_again} == nodes.keys()
    if kind != "gang":
        assert set(fitting) <= set(again)


@EXAMPLES
@A_CLUSTER
def test_filter_and_prioritize_of_whole_nodes(listed: list[Node], setup: Setup, kind: str, priority: int) -> None:
    nodes, document = by_name(listed), wanted(kind, priority)
    verbs = made(nodes, setup).verbs(scores_ahead=setup.scores_ahead)
    fitting, refused = named(sent(verbs.filter(asked_with_nodes(document, list(nodes)))))
    assert {*fitting, *refused} == nodes.keys()
    scores = sent(verbs.prioritize(asked_with_nodes(document, fitting)))
    assert [score["Host"] for score in scores] == fitting


@EXAMPLES
@A_CLUSTER
def test_preempt(listed: list[Node], setup: Setup, kind: str, priority: int) -> None:
    """The answer has no reasons: a node without victims is no candidate. The reason is there for who asks: evictions
    do not help, or are not needed."""
    nodes, document = by_name(listed), wanted(kind, priority)
    service = made(nodes, setup)
    proposed = {
        name: {"Pods": [{"UID": f"uid-on-{name}"}] if node.occupant == "running" else None}
        for name, node in nodes.items()
    }
    request = {"Pod": document, "NodeNameToVictims": None, "NodeNameToMetaVictims": proposed}
    reply = asyncio.run(service.verbs().preempt(msgspec.json.encode(request)))
    answer = sent(reply)["NodeNameToMetaVictims"]
    assert answer.keys() <= nodes.keys()
    assert all(victims["Pods"] for victims in answer.values())
    question = service.question(document, *nodes)
    verdicts = service.answers.verdicts(question)
    for at, (name, node) in enumerate(nodes.items()):
        if name not in answer and verdicts.refusal(at) and node.occupant == "running" and priority > 0:
            assert service.ledger.gates.all(question.record, name, {f"uid-on-{name}"})


@EXAMPLES
@A_CLUSTER
def test_volcano(listed: list[Node], setup: Setup, kind: str, priority: int) -> None:
    nodes, document = by_name(listed), wanted(kind, priority)
    volcano = Volcano(made(nodes, setup))
    for name in nodes:
        code, status = volcano.predicate(document, name)
        assert (code == 0) is (status == "")
    assert volcano.scores(document, *nodes).keys() == nodes.keys()


@EXAMPLES
@A_CLUSTER
def test_grpc(listed: list[Node], setup: Setup, kind: str, priority: int) -> None:
    nodes, raw = by_name(listed), json.dumps(wanted(kind, priority)).encode()
    service = made(nodes, setup)
    scoring = grpc_api.ScoringService(service.answers, service.view, service.fitting(), lambda: None)
    context = cast(grpc_api.Context, None)
    request = scoring_pb2.FilterRequest(pod=raw, nodes=list(nodes))
    answer = asyncio.run(scoring.Filter(request, context))
    reasons = [answer.reasons[index] for index in answer.reason_index]
    assert len(answer.verdicts) == len(reasons) == len(nodes)
    for verdict, reason in zip(answer.verdicts, reasons, strict=True):
        assert (verdict == scoring_pb2.VERDICT_FITS) is (reason == "")
    scored = asyncio.run(scoring.Score(scoring_pb2.ScoreRequest(pod=raw, nodes=list(nodes)), context))
    assert len(scored.scores) == len(nodes)
    explained = asyncio.run(scoring.Explain(scoring_pb2.ExplainRequest(pod=raw, nodes=list(nodes)), context))
    assert len(explained.verdicts) == len(nodes)
    assert all(explained.details)


def test_a_pod_that_fits_nowhere_gets_its_reasons_at_the_first_request() -> None:
    service = Service()
    names = ["n1", "n2", "n3"]
    for name in names:
        service.put_node(name)
        service.report(exact(kubelet(), name=name))
    assert named(sent(service.verbs().filter(asked(pod("new", "5"), names)))) == ([], names)
