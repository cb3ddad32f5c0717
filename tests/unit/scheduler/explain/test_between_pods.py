"""A pod that other pods keep from nodes: explanations name kube-scheduler's constraint on each node, and only what
nobody examines is called not examined."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from placing import GATED, Placing
from scheduling import Service, counts, pod
from topowise_scheduler.explain.waiting import WaitingPod, waiting_pod
from topowise_scheduler.explain.waiting_texts import next_step
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.verdicts import kube_scheduler

Json = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
SELECTOR = {"matchLabels": {"app": "a"}}
VOLUMES = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


def terms(kind: str, key: str) -> Json:
    term = {"topologyKey": key, "labelSelector": SELECTOR}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def spread(key: str = ZONE) -> Json:
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECTOR}
    return {"topologySpreadConstraints": [constraint]}


def with_port() -> Json:
    amounts = {"cpu": "2", "memory": "1Gi"}
    resources = {"requests": amounts, "limits": amounts}
    return {"containers": [{"name": "a", "resources": resources, "ports": [{"containerPort": 80, "hostPort": 80}]}]}


@pytest.fixture
def placing() -> Placing:
    """n1 and n2 in zone a, n3 in zone b is full, n4 has no zone; a pod with the label app=a and a host port on n1."""
    placing = Placing("8", "8", "0", "8")
    for name, zone in {"n1": "a", "n2": "a", "n3": "b", "n4": ""}.items():
        placing.node(name, labels={HOST: name, **({ZONE: zone} if zone else {})})
    placing.put("old", "1", labels={"app": "a"}, node="n1", **with_port())
    return placing


SKEW = f"node(s) didn't match pod topology spread constraints: {ZONE}=a has 1 such pods, the fewest are 0, maxSkew is 1"
LABEL = f"node(s) didn't match pod topology spread constraints (missing required label): {ZONE}"
PORTS = "node(s) didn't have free ports for the requested pod ports: 80/TCP"
REPELLED = "node(s) didn't match pod anti-affinity rules"


@pytest.mark.parametrize(
    ("spec", "refused", "cause"),
    [
        (spread(), {"n1": SKEW, "n2": SKEW, "n4": LABEL}, "other pods"),
        (terms("podAntiAffinity", HOST), {"n1": f"{REPELLED}: {HOST}=n1"}, "retry"),
        (terms("podAntiAffinity", ZONE), {"n1": f"{REPELLED}: {ZONE}=a", "n2": f"{REPELLED}: {ZONE}=a"}, "retry"),
        (terms("podAffinity", ZONE), {"n4": f"node(s) didn't match pod affinity rules: {ZONE}"}, "retry"),
        (with_port(), {"n1": PORTS}, "retry"),
    ],
)
def test_each_node_has_the_words_of_its_constraint(placing: Placing, spec: Json, refused: Json, cause: str) -> None:
    record = placing.put("new", labels={"app": "a"}, **spec)
    candidate = kube_scheduler.decode(msgspec.json.encode(pod("new", **placing.pods["new"])))
    for trial in (record, placing.service.trial.record(candidate)):
        seen = waiting_pod(placing.service.view, trial)
        assert (seen.cause, seen.unexamined) == (cause, ())
    nodes = {node.node: node for node in placing.service.view.explanations(candidate, ["n1", "n2", "n3", "n4"])}
    words = {name: node.text.removesuffix("; the pod would fit otherwise") for name, node in nodes.items()}
    assert {name: words[name] for name in refused} == refused
    takers = {name for name, node in nodes.items() if node.verdict == "fits"}
    assert takers == {"n1", "n2", "n4"} - refused.keys()
    # The placement decides by the same constraints.
    assert set(placing.place_all().values()) <= takers
    assert bool(placing.placed()) == bool(takers)


def test_the_next_step_names_the_constraint(placing: Placing) -> None:
    seen = waiting_pod(placing.service.view, placing.put("new", labels={"app": "a"}, **spread()))
    assert next_step(seen.step) == (
        f"wait for other pods, or change the constraint that keeps it from n1, which has room: {SKEW}"
    )
    placing.put("foreign", "1", labels={"app": "a"}, node="n3")
    assert waiting_of(placing, "new").cause == "retry"


def waiting_of(placing: Placing, name: str) -> WaitingPod:
    return waiting_pod(placing.service.view, placing.ledger.waiting[f"uid-{name}"])


def test_pods_that_differ_only_in_what_other_pods_see_have_answers_of_their_own(placing: Placing) -> None:
    for number in (1, 2, 4):
        placing.put(f"alone-{number}", "1", labels={"app": "b"}, node=f"n{number}", **terms("podAntiAffinity", HOST))
    for name, app in (("repelled", "a"), ("welcome", "c")):
        placing.put(name, labels={"app": app})
    assert (waiting_of(placing, "repelled").cause, waiting_of(placing, "welcome").cause) == ("other pods", "retry")


def test_a_pod_is_explained_as_if_it_were_not_there(placing: Placing) -> None:
    """Otherwise an assigned pod would repel itself."""
    document = pod("there", labels={"app": "a"}, node="n2", **terms("podAntiAffinity", HOST))
    placing.service.put(document)
    candidate = kube_scheduler.unbound(kube_scheduler.decode(msgspec.json.encode(document)))
    nodes = placing.service.view.explanations(candidate, ["n1", "n2"])
    assert [node.verdict for node in nodes] == ["not now", "fits"]


def test_a_node_without_room_says_so_and_not_the_constraint(placing: Placing) -> None:
    allocatable = {"cpu": "2", "memory": "64Gi", "pods": "9"}
    placing.service.put_node("n1", labels={HOST: "n1", ZONE: "a"}, allocatable=allocatable)
    for spec in (spread(), with_port()):
        candidate = kube_scheduler.decode(msgspec.json.encode(pod("new", labels={"app": "a"}, **spec)))
        (node,) = placing.service.view.explanations(candidate, ["n1"])
        assert node.text.startswith("Insufficient cpu")


def test_a_pod_that_lacks_room_and_a_constraint_everywhere_waits_for_room(placing: Placing) -> None:
    placing.put("foreign", "1", labels={"app": "a"}, node="n4")
    for number in (1, 2, 4):
        placing.put(f"large-{number}", "7", node=f"n{number}")
    seen = waiting_pod(
        placing.service.view, placing.put("new", "4", labels={"app": "a"}, **terms("podAntiAffinity", HOST))
    )
    assert seen.cause in ("alignment", "resources")


def test_only_what_nobody_examines_is_called_so(placing: Placing) -> None:
    spec = {**spread(HOST), "volumes": VOLUMES, "schedulingGates": [*GATED["schedulingGates"], {"name": "other"}]}
    document = pod("new", **spec)
    candidate = kube_scheduler.decode(msgspec.json.encode(document))
    (node,) = placing.service.view.explanations(candidate, ["n1"])
    assert node.not_looked_at == ("volumes", "scheduling gates")
    # A service that places no pods has no index of them.
    other = Service()
    other.report(counts("n1", "8", included=()))
    (node,) = other.view.explanations(candidate, ["n1"])
    assert node.not_looked_at == ("topology spread", "volumes", "scheduling gates")
    assert record_of(other, document).constraints is not None


def record_of(service: Service, document: Json) -> PodRecord:
    return service.trial.record(kube_scheduler.decode(json.dumps(document).encode()))
