"""`filter.mergeEqualNodes`: filter names one node of each set of nodes that kube-scheduler scores equally."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduling import Service, counts, decoded, pod, sent
from topowise_scheduler.ledger.equal_nodes import EqualNodes
from topowise_scheduler.serve.extender.shortlist import Shortlist
from topowise_scheduler.serve.extender.verbs import Verbs

_NAMES = [f"n{number}" for number in range(1, 9)]
_LABELS = {"app": "web", "tier": "front"}
_IMAGE = "registry.example/web:1"
_GIB = 1 << 30


@pytest.fixture
def service() -> Service:
    started = Service()
    for name in _NAMES:
        started.report(counts(name, "8", included=()))
        started.put_node(name)
    return started


def verbs(service: Service, *, merges_equal: bool = True) -> Verbs:
    return service.verbs(shortlist=Shortlist(service.answers, service.ledger, service.nodes, merges_equal=merges_equal))


def body(document: dict[str, Any], names: list[str]) -> bytes:
    return msgspec.json.encode({"Pod": document, "Nodes": None, "NodeNames": names})


def new(name: str = "new", **fields: Any) -> dict[str, Any]:
    document = pod(name, labels=_LABELS, **fields)
    document["spec"]["containers"][0]["image"] = _IMAGE
    return document


def named(served: Verbs, document: dict[str, Any], names: list[str] = _NAMES) -> list[str]:
    answer = sent(served.filter(body(document, names)))
    assert answer["Error"] == ""
    fitting: list[str] = answer["NodeNames"]
    return fitting


def running(name: str, node: str, *, namespace: str = "default", **fields: Any) -> dict[str, Any]:
    """Returns a pod without requests, which changes nothing for the kubelet's managers."""
    document = pod(name, node=node, **fields)
    document["metadata"]["namespace"] = namespace
    document["spec"]["containers"][0]["resources"] = {}
    return document


def on_each(service: Service, labels: dict[str, dict[str, str]], namespace: str = "default") -> None:
    """Puts a pod on each node, with these labels by node."""
    for name in _NAMES:
        service.put(running(f"on-{name}", name, namespace=namespace, labels=labels.get(name, {"app": "other"})))


def test_one_of_all_equal_nodes_is_named(service: Service) -> None:
    assert named(verbs(service), new()) == ["n1"]


def test_the_node_of_the_best_score_is_named(service: Service) -> None:
    # LeastAllocated prefers n5; kube-scheduler sees the same requests on all nodes.
    for name in _NAMES:
        service.report(counts(name, "6" if name == "n5" else "4", included=()))
    assert named(verbs(service), new()) == ["n5"]


_ZONE = {"topology.kubernetes.io/zone": "b"}
_AMOUNTS = {"cpu": "8", "memory": "64Gi", "pods": "110"}


@pytest.mark.parametrize(
    ("spec", "fields", "is_scored"),
    [
        pytest.param({}, {"labels": _ZONE}, True, id="zone"),
        pytest.param({"taints": [{"key": "old", "effect": "PreferNoSchedule"}]}, {}, True, id="taint"),
        pytest.param({}, {"images": [_IMAGE]}, True, id="image"),
        pytest.param({}, {"allocatable": {**_AMOUNTS, "cpu": "16"}}, True, id="allocatable"),
        pytest.param({}, {"allocatable": {**_AMOUNTS, "example.com/gpu": "1"}}, True, id="extended resource"),
        pytest.param({}, {"labels": {"example.com/serial": "42"}}, False, id="label"),
        pytest.param({"taints": [{"key": "gone", "effect": "NoSchedule"}]}, {}, False, id="hard taint"),
        pytest.param({}, {"images": ["registry.example/other:1"]}, False, id="image of another pod"),
        pytest.param(
            {}, {"allocatable": {**_AMOUNTS, "memory": f"{64 * _GIB + 4096}", "pods": "100"}}, False, id="some KiB"
        ),
    ],
)
def test_a_node_is_named_for_a_difference_that_a_plugin_scores(
    service: Service, spec: dict[str, Any], fields: dict[str, Any], *, is_scored: bool
) -> None:
    service.put_node("n6", spec, **fields)
    assert named(verbs(service), new()) == (["n1", "n6"] if is_scored else ["n1"])


def test_images_are_compared_as_kube_scheduler_names_them(service: Service) -> None:
    service.put_node("n6", images=["registry.example:5000/web:latest", "registry.example:5000/web@sha256:0"])
    document = new()
    document["spec"]["containers"][0]["image"] = "registry.example:5000/web"
    assert named(verbs(service), document) == ["n1", "n6"]


def test_nodes_with_other_requests_are_named(service: Service) -> None:
    service.put(running("idle", "n3"))
    burstable = running("burstable", "n5")
    burstable["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2", "memory": "2Gi"}}
    service.put(burstable)
    assert named(verbs(service), new()) == ["n1", "n3", "n5"]


def test_nodes_with_other_numbers_of_pods_that_a_selector_may_select_are_named(service: Service) -> None:
    on_each(service, {"n3": _LABELS | {"pod-index": "0"}, "n5": {"app": "web"}, "n7": _LABELS | {"pod-index": "1"}})
    assert named(verbs(service), new()) == ["n1", "n3", "n5"]


def test_labels_of_pods_of_other_namespaces_are_ignored(service: Service) -> None:
    on_each(service, {"n3": _LABELS}, namespace="another")
    assert named(verbs(service), new()) == ["n1"]


@pytest.mark.parametrize("change", [{"labels": {"app": "other"}}, {"labels": _LABELS, "deletionTimestamp": "2026"}])
def test_a_changed_pod_counts_as_it_is_now(service: Service, change: dict[str, Any]) -> None:
    on_each(service, {"n3": _LABELS})
    served = verbs(service)
    assert named(served, new("first")) == ["n1", "n3"]
    service.ledger.reservations.release("uid-first")
    service.put(running("on-n3", "n3", **change))
    assert named(served, new("second")) == ["n1"]


def _term(**fields: Any) -> dict[str, Any]:
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, **fields}


_REQUIRED, _PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))


@pytest.mark.parametrize(
    ("affinity", "namespace", "is_scored"),
    [
        ({"podAffinity": {_REQUIRED: [_term()]}}, "default", True),
        ({"podAffinity": {_PREFERRED: [{"weight": 1, "podAffinityTerm": _term()}]}}, "default", True),
        ({"podAntiAffinity": {_PREFERRED: [{"weight": 1, "podAffinityTerm": _term()}]}}, "default", True),
        ({"podAntiAffinity": {_REQUIRED: [_term()]}}, "default", False),
        ({"podAffinity": {_REQUIRED: [_term()]}}, "another", False),
        ({"podAffinity": {_REQUIRED: [_term(namespaces=["default"])]}}, "another", True),
        ({"podAffinity": {_REQUIRED: [_term(namespaces=["third"])]}}, "default", False),
        ({"podAffinity": {_REQUIRED: [_term(namespaceSelector={})]}}, "another", True),
    ],
)
def test_a_pod_that_terms_of_other_pods_may_select_gets_all_nodes(
    service: Service, affinity: dict[str, Any], namespace: str, *, is_scored: bool
) -> None:
    on_each(service, {})
    service.put(running("on-n4", "n4", namespace=namespace, affinity=affinity))
    service.ledger.drop_pod("uid-gone")
    served = verbs(service)
    assert (named(served, new("first")) == _NAMES) is is_scored
    service.ledger.drop_pod("uid-on-n4")
    service.ledger.reservations.release("uid-first")
    assert named(served, new("second")) != _NAMES


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {_PREFERRED: [{"weight": 1, "preference": {}}]}}},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
        {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
        {"volumes": [{"name": "data", "ephemeral": {}}]},
        {"volumes": [{"name": "model", "image": {"reference": "model"}}]},
        {"resourceClaims": [{"name": "gpu"}]},
    ],
    ids=["node affinity", "spread", "claim", "ephemeral", "image volume", "resource claim"],
)
def test_a_pod_with_preferences_that_are_not_examined_gets_all_nodes(service: Service, spec: dict[str, Any]) -> None:
    assert named(verbs(service), new(**spec)) == _NAMES


def test_each_named_node_has_the_score_that_it_has_among_all_nodes(service: Service) -> None:
    for free, name in enumerate(_NAMES, start=1):
        service.report(counts(name, str(free), included=()))
        service.put_node(name, labels={"topology.kubernetes.io/zone": "a" if free < 6 else "b"})
    scores = []
    for is_on in (True, False):
        served, document = verbs(service, merges_equal=is_on), new("new", resourceVersion="1")
        names = named(served, document)
        assert (len(names) == 2) is is_on
        answer = sent(served.prioritize(body(document, names)))
        scores.append({score["Host"]: score["Score"] for score in answer})
        service.ledger.reservations.release("uid-new")
    assert scores[0].items() <= scores[1].items()
    assert scores[0].keys() == {"n5", "n8"}


def test_many_changed_nodes_are_examined_in_several_requests(service: Service) -> None:
    names = [f"m{number}" for number in range(600)]
    for name in names:
        service.report(counts(name, "8", included=()))
        service.put_node(name)
    served = verbs(service)
    answers = [len(named(served, new(f"new-{number}"), names)) for number in range(6)]
    assert answers[:4] == [600] * 4
    assert answers[5] < 10


def test_removed_nodes_are_forgotten(service: Service) -> None:
    served = verbs(service)
    on_each(service, {"n3": _LABELS})
    assert named(served, new("first")) == ["n1", "n3"]
    service.ledger.reservations.release("uid-first")
    service.ledger.reports.drop("n3")
    service.put_node("late")
    service.report(counts("late", "8", included=()))
    service.put(running("on-late", "late", labels={"app": "other"}))
    assert named(served, new("second"), [*_NAMES, "late"]) == ["n1", "n3"]


def test_what_is_remembered_is_bounded(service: Service) -> None:
    equal = EqualNodes(service.ledger, service.nodes)
    rows = service.engine.rows(_NAMES)
    for number in range(200):
        record = service.records.record(decoded(pod(f"new-{number}", labels={"job": f"{number:0>500}"})))
        assert equal.of(record, (f"image-{number}",), rows) is not None
    assert len(equal._by_labels) == len(equal._by_images) == 64
    service.ledger.reports.drop("n3")
    equal.of(record, (), rows)
    assert equal._labels.keys() == set(_NAMES) - {"n3"}
