"""Questions about whole Nodes that the cluster does not have: answered from the profile of their group."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from refusal_words import refusals
from scheduling import Service, kubelet, pod, sent
from topowise_scheduler.overlay.overlay import NodeCopy
from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels, Profile
from topowise_scheduler.overlay.scale_up.template_nodes import TemplateNodes
from topowise_scheduler.serve.extender.replies import BadRequestError
from topowise_scheduler.serve.extender.verbs import Verbs
from topowise_scheduler.verdicts.kube_scheduler import Node

from .test_packing import group_service

KEYS = ("pool", "type")
ALLOCATABLE = {"cpu": "8", "memory": "64Gi", "pods": "110"}

Declared = dict[GroupLabels, Profile]


def template(name: str = "template-1", pool: str = "a", **amounts: str) -> dict[str, Any]:
    labels = {"pool": pool, "kubernetes.io/hostname": name}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {**ALLOCATABLE, **amounts}}}


def verbs(service: Service, declared: Declared | None = None) -> Verbs:
    templates = TemplateNodes(service.trial, KEYS, declared or {})
    return service.verbs(templates=templates)


def filtered(answering: Verbs, document: dict[str, Any], *nodes: dict[str, Any]) -> dict[str, str]:
    """Returns the refusal by name, "" for a node that takes the pod."""
    body = msgspec.json.encode({"Pod": document, "Nodes": {"items": nodes}, "NodeNames": None})
    answer = sent(answering.filter(body))
    assert not answer["Error"]
    fits = {node["metadata"]["name"]: "" for node in answer["Nodes"]["items"]}
    return {**fits, **answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}


def scored(answering: Verbs, document: dict[str, Any], *nodes: dict[str, Any]) -> dict[str, int]:
    body = msgspec.json.encode({"Pod": document, "Nodes": {"items": nodes}, "NodeNames": None})
    return {score["Host"]: score["Score"] for score in sent(answering.prioritize(body))}


@pytest.fixture
def service() -> Service:
    """A full node of the pool "a" with 3 and 4 CPUs by NUMA node, and a node of no pool that takes no pod."""
    service = group_service("n1", running=("3", "4"))
    service.put_node("other")
    return service


# No kubelet aligns it.
SHARED = pod("shared", containers=[{"name": "c", "resources": {"requests": {"cpu": "5"}}}])


@pytest.mark.parametrize(
    ("document", "node", "refusal"),
    [
        (pod("p", "4"), template(), ""),
        (pod("p", "5"), template(), refusals.NEVER),
        (pod("p", "5"), template(cpu="7910m", memory="60Gi"), refusals.NEVER),
        (SHARED, template(), ""),
    ],
    ids=["fits", "too large", "as a cloud provider estimates", "shared CPUs"],
)
def test_a_template_is_the_empty_node_of_its_group(
    service: Service, document: dict[str, Any], node: dict[str, Any], refusal: str
) -> None:
    answering = verbs(service)
    assert filtered(answering, document, node) == {"template-1": refusal}
    if document is not SHARED:
        assert scored(answering, document, node) == {"template-1": int(not refusal)}


def test_templates_are_answered_beside_nodes_of_the_cluster(service: Service) -> None:
    known = {"metadata": {"name": "n1", "labels": {"pool": "a"}}}
    answers = filtered(verbs(service), pod("p", "4"), known, template("t1"), template("t2", pool="b"))
    assert answers == {"n1": refusals.NOT_NOW, "t1": "", "t2": ""}


@pytest.mark.parametrize(
    "node",
    [
        template(pool="b"),
        {"metadata": {"name": "without-labels"}},
        template(cpu="16"),
        template(memory="128Gi"),
        template(**{"nvidia.com/gpu": "8"}),
        {"metadata": {"name": "other", "labels": {"pool": "a"}}},
    ],
    ids=["another pool", "no labels", "more CPUs", "more memory", "devices", "a node of the cluster"],
)
def test_a_node_that_is_no_template_of_a_known_group_fits_as_before(service: Service, node: dict[str, Any]) -> None:
    assert filtered(verbs(service), pod("p", "5"), node) == {node["metadata"]["name"]: ""}


def test_the_policy_of_the_group_counts(service: Service) -> None:
    answering = verbs(service)
    for policy, refusal in (("single-numa-node", ""), ("restricted", "")):
        document = pod("p", "2", annotations={"topowise.io/numa-policy": policy})
        assert filtered(answering, document, template()) == {"template-1": refusal}
    document = pod("p", "2", annotations={"volcano.sh/numa-topology-policy": "restricted"})
    assert filtered(answering, document, template()) == {"template-1": refusals.OTHER_POLICY}


def test_a_declared_group_is_answered_until_a_node_of_it_is_reported(service: Service) -> None:
    wide = kubelet(topologyManagerPolicy="best-effort")
    node = Node("", allocatable=wide.allocatable(), labels={"pool": "b"})
    group: GroupLabels = (("pool", "b"),)
    answering = verbs(service, {group: Profile(group, NodeCopy((kubelet(),), like="", node=node))})
    amounts = {"cpu": "7", "memory": str(wide.allocatable()["memory"])}
    assert filtered(answering, pod("p", "5"), template(pool="b", **amounts)) == {"template-1": refusals.NEVER}
    learned = group_service("n2", topologyManagerPolicy="best-effort")
    answering = verbs(learned, {(("pool", "a"),): Profile(group, NodeCopy((kubelet(),), like="", node=node))})
    assert filtered(answering, pod("p", "5"), template()) == {"template-1": ""}


def test_a_node_that_joins_or_leaves_changes_the_answers() -> None:
    service = group_service("n1")
    answering = verbs(service)
    assert filtered(answering, pod("p", "5"), template(pool="c")) == {"template-1": ""}
    service.put_node("n1", labels={"pool": "c"})
    assert filtered(answering, pod("p", "5"), template(pool="c")) == {"template-1": refusals.NEVER}
    assert filtered(answering, pod("p", "5"), template(pool="a")) == {"template-1": ""}


@pytest.mark.parametrize("labels", [[], 5, {"pool": 7}])
def test_an_unreadable_template_is_an_error_of_the_request(service: Service, labels: object) -> None:
    body = {"Pod": pod("p"), "Nodes": {"items": [{"metadata": {"name": "t", "labels": labels}}]}, "NodeNames": None}
    with pytest.raises(BadRequestError, match="request is not ExtenderArgs"):
        verbs(service).filter(msgspec.json.encode(body))
