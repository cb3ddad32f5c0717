"""Pods are kept away from a kubelet that would be busy with them for too long, if so configured."""

from __future__ import annotations

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import Service, configuration, decoded, exact, kubelet, machine, pod
from topowise import nrt
from topowise_scheduler.kubelet import Kubelet, cost
from topowise_scheduler.verdicts.refusals import Refusal

NAMES = ["narrow", "wide", "like-it"]


def wide(name: str, version: str = "1", **changed: object) -> nrt.NodeResourceTopology:
    """Of twelve NUMA nodes, on which a pod of CPUs and memory takes about five seconds."""
    options = {
        "topologyManagerPolicy": "restricted",
        "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "16"},
    }
    config = configuration(**{**options, **changed})
    topology = exported(machine(12), config, Kubelet(machine(12), config), lambda uid: ("default", uid))
    return msgspec.structs.replace(
        topology, metadata=msgspec.structs.replace(topology.metadata, name=name, resourceVersion=version)
    )


def service(limit_s: float) -> Service:
    started = Service(max_admission_s=limit_s)
    started.report(exact(kubelet(), name="narrow"))
    started.report(wide("wide"))
    started.report(wide("like-it"))
    return started


def refused(running: Service, memory: str = "1Gi") -> dict[str, str]:
    question = running.answers.question(decoded(pod("p", "1", memory)), NAMES, is_simulation=True)
    verdicts = running.answers.verdicts(question)
    return {name: refusal for at, name in enumerate(NAMES) if (refusal := verdicts.refusal(at))}


@pytest.mark.parametrize(("limit_s", "is_kept_away"), [(0.0, False), (1.0, True), (60.0, False)])
def test_a_pod_that_would_take_longer_than_the_limit_is_kept_away(limit_s: float, *, is_kept_away: bool) -> None:
    expected = dict.fromkeys(["wide", "like-it"], Refusal.TOO_SLOW) if is_kept_away else {}
    assert refused(service(limit_s)) == expected


def test_a_node_that_is_configured_otherwise_or_gone_is_judged_anew() -> None:
    running = service(1.0)
    assert refused(running)
    # Kept to one NUMA node its kubelet tries no combinations.
    running.report(wide("wide", "2", topologyManagerPolicy="single-numa-node"))
    assert refused(running).keys() == {"like-it"}
    running.ledger.reports.drop("like-it")
    assert refused(running) == {}


def test_nothing_is_remembered_of_pods_where_no_node_is_in_question() -> None:
    running = service(0.0)
    assert refused(running) == {}
    assert not running.ledger.gates.slow_admissions._rows


def test_nodes_that_are_alike_are_estimated_once_for_all_pods_of_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    running, calls = service(1.0), []
    estimate = cost.estimate
    monkeypatch.setattr(cost, "estimate", lambda node, view: calls.append(view) or estimate(node, view))
    for _ in range(3):
        refused(running)
    assert len(calls) == 1
    refused(running, "2Gi")
    assert len(calls) == 2
