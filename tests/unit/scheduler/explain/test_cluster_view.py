"""Explanations and fits include the decisions of kube-scheduler, not only of the kubelet."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduling import Service, counts, full, pod
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Pod

GPU = "nvidia.com/gpu"


def pod_object(name: str = "a", cpu: str = "2", *, gpus: str = "", **fields: Any) -> Pod:
    document = pod(name, cpu, **fields)
    if gpus:
        for amounts in document["spec"]["containers"][0]["resources"].values():
            amounts[GPU] = gpus
    return kube_scheduler.decode(json.dumps(document).encode())


@pytest.fixture
def service() -> Service:
    """Nodes with eight free CPUs: a healthy node, and a node for each reason against a node."""
    service = Service("TightFit")
    for name in ("good", "cordoned", "tainted", "silent", "other-pool", "gone", "gpu"):
        service.report(counts(name, "8", included=()))
    pool = {"pool": "a"}
    service.put_node("good", labels=pool)
    service.put_node("cordoned", {"unschedulable": True}, labels=pool)
    service.put_node("tainted", {"taints": [{"key": "only", "value": "x", "effect": "NoSchedule"}]}, labels=pool)
    service.put_node("silent", ready="Unknown", labels=pool)
    service.put_node("other-pool", labels={"pool": "b"})
    allocatable = {"cpu": "8", "memory": "64Gi", "pods": "110", GPU: "2"}
    service.put_node("gpu", labels=pool, allocatable=allocatable)
    service.put_node("virtual", labels=pool, allocatable={"cpu": "4", "memory": "64Gi", "pods": "110"})
    return service


def explained(service: Service, candidate: Pod) -> dict[str, tuple[str, str]]:
    return {
        explanation.node: (explanation.verdict, explanation.text)
        for explanation in service.view.explanations(candidate, service.trial.names)
    }


def filled(service: Service, candidate: Pod) -> dict[str, int]:
    return {room.node: room.count for room in service.view.rooms(candidate, service.trial.names)}


def test_a_node_that_kube_scheduler_would_not_take_never_fits(service: Service) -> None:
    shown = explained(service, pod_object(nodeSelector={"pool": "a"}))
    assert {name: verdict for name, (verdict, _) in shown.items()} == {
        "cordoned": "excluded",
        "gone": "excluded",
        "good": "fits",
        "gpu": "fits",
        "other-pool": "excluded",
        "silent": "excluded",
        "tainted": "excluded",
        "virtual": "not reported",
    }
    for name, words in {
        "cordoned": "the node is cordoned",
        "gone": "node(s) without a Node object",
        "other-pool": "the pod requires pool=a, the node has 'b'",
        "silent": "the node is not ready",
        "tainted": "only=x:NoSchedule",
    }.items():
        assert words in shown[name][1]
    assert filled(service, pod_object(nodeSelector={"pool": "a"})) == {
        **dict.fromkeys(("cordoned", "gone", "other-pool", "silent", "tainted"), 0),
        "good": 4,
        "gpu": 4,
        "virtual": 2,
    }


def test_sums_count_running_and_nominated_pods(service: Service) -> None:
    service.put(pod("there", "1", node="virtual"))
    service.put(pod("coming", "1", nominatedNodeName="virtual", priority=10))
    assert explained(service, pod_object(cpu="3"))["virtual"] == (
        "not now",
        "Insufficient cpu: asks for 3, 2 of 4 are free",
    )
    # A nominated pod does not count against a pod of higher priority.
    assert explained(service, pod_object(cpu="3", priority=20))["virtual"][0] == "not reported"
    # A pod does not count against itself.
    assert explained(service, pod_object("there", "3", node="virtual"))["virtual"][0] == "not reported"


def test_pods_are_counted_too(service: Service) -> None:
    service.put_node("good", allocatable={"cpu": "8", "memory": "64Gi", "pods": "1"})
    service.put(pod("small", "1m", "1Mi", node="good"))
    assert explained(service, pod_object())["good"] == ("not now", "Too many pods: 1 of 1 are in use")


def test_a_pod_too_large_for_the_empty_node_never_fits() -> None:
    service = full()
    service.put_node("n1", allocatable={"cpu": "16", "memory": "64Gi", "pods": "110"})
    verdict, text = explained(service, pod_object(cpu="9"))["n1"]
    assert verdict == "never"
    assert "not even the empty node would do, whose largest NUMA node has cpu 8, not 9" in text
    assert explained(service, pod_object(cpu="9", nodeSelector={"pool": "a"}))["n1"][0] == "excluded"


def test_refusing_nodes_are_not_scored(service: Service) -> None:
    """Scores are spread only over nodes that kube-scheduler would send."""
    service.put(pod("there", "3", node="gpu"))
    names = ["good", "gpu", "virtual"]
    alone = {explanation.node: explanation.score for explanation in service.view.explanations(pod_object(), names)}
    among = {
        explanation.node: explanation.score
        for explanation in service.view.explanations(pod_object(), service.trial.names)
    }
    assert alone == {"good": 5, "gpu": 10, "virtual": 0}
    assert {name: among[name] for name in names} == alone
    assert among["cordoned"] == 0


def test_without_node_objects_only_kubelets_decide() -> None:
    service = Service()
    service.report(counts("n1", "8", included=()))
    assert explained(service, pod_object(nodeSelector={"pool": "a"}))["n1"][0] == "fits"
    assert filled(service, pod_object()) == {"n1": 4}


def test_a_bound_pod_is_explained_as_unbound(service: Service) -> None:
    bound = kube_scheduler.unbound(pod_object(node="good"))
    assert explained(service, bound)["gpu"][0] == "fits"
    wish = kube_scheduler.unbound(pod_object(uid="", node="good"))
    assert explained(service, wish)["gpu"] == (
        "excluded",
        "node(s) didn't match the requested node name: good; the pod would fit otherwise",
    )


def test_the_verbs_do_not_repeat_the_filters_of_kube_scheduler(service: Service) -> None:
    """kube-scheduler sends nodes that passed its own filters, so the extender does not repeat the filters."""
    document = pod("a", nodeSelector={"pool": "a"})
    assert service.fits(document, "good", "cordoned", "other-pool") == ["good", "cordoned", "other-pool"]


def test_unknown_policies_and_contradictory_amounts_are_explained(service: Service) -> None:
    topology = counts("good", "8", policy="strict", included=())
    service.report(topology)
    assert explained(service, pod_object())["good"] == (
        "fits",
        "fits by sums alone: the policy of the node's Topology Manager is not known; "
        "container c has CPUs on NUMA node 0",
    )
    assert service.view.explanations(pod_object(), ["good"])[0].policy == "unknown"
    service.report(counts("good", "8", allocatable="0", included=()))
    verdict, text = explained(service, pod_object())["good"]
    assert verdict == "never"
    assert "; of its report something could not be used: zones: node-0 cpu '8' available of an allocatable of 0" in text
