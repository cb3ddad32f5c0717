"""Pods are kept away from a kubelet that would be busy with them for too long, if so configured."""

from __future__ import annotations

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import Service, configuration, exact, kubelet, machine, pod
from topowise import nrt, pods
from topowise_scheduler import kube_scheduler, refusals
from topowise_scheduler.kubelet import Kubelet, cost

NAMES = ["narrow", "wide", "like-it"]


def wide(name: str, version: str = "1", **changed: object) -> nrt.NodeResourceTopology:
    """Of twelve NUMA nodes, on which a pod of CPUs and memory takes about five seconds."""
    options = {
        "topologyManagerPolicy": "restricted",
        "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "16"},
    }
    config = configuration(**{**options, **changed})
    made = exported(machine(12), config, Kubelet(machine(12), config), lambda uid: ("default", uid))
    return msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, name=name, resourceVersion=version)
    )


def service(limit_s: float) -> Service:
    made = Service(max_admission_s=limit_s)
    made.report(exact(kubelet(), name="narrow"))
    made.report(wide("wide"))
    made.report(wide("like-it"))
    return made


def refused(made: Service, memory: str = "1Gi") -> dict[str, str]:
    asked = made.answers.question(pods.decode(msgspec.json.encode(pod("p", "1", memory))), NAMES, is_simulation=True)
    verdicts = made.answers.verdicts(asked)
    return {name: text for at, name in enumerate(NAMES) if (text := verdicts.text(at))}


@pytest.mark.parametrize(("limit_s", "is_kept_away"), [(0.0, False), (1.0, True), (60.0, False)])
def test_a_pod_that_would_take_longer_than_the_limit_is_kept_away(limit_s: float, *, is_kept_away: bool) -> None:
    expected = dict.fromkeys(["wide", "like-it"], refusals.TOO_SLOW) if is_kept_away else {}
    assert refused(service(limit_s)) == expected


def test_people_are_told_the_same() -> None:
    made = service(1.0)
    wanted = kube_scheduler.decode(msgspec.json.encode(pod("p", "1")))
    found = {one.node: one for one in made.view.explanations(wanted, NAMES)}
    assert {name: one.verdict for name, one in found.items()} == {
        "narrow": "fits",
        "wide": "never",
        "like-it": "never",
    }
    assert found["wide"].text.startswith(f"{refusals.TOO_SLOW}; its kubelet takes about 5 seconds to decide")


def test_a_node_that_is_configured_otherwise_or_gone_is_judged_anew() -> None:
    made = service(1.0)
    assert refused(made)
    # Kept to one NUMA node its kubelet tries no combinations.
    made.report(wide("wide", "2", topologyManagerPolicy="single-numa-node"))
    assert refused(made).keys() == {"like-it"}
    made.ledger.reports.drop("like-it")
    assert refused(made) == {}


def test_nothing_is_remembered_of_pods_where_no_node_is_in_question() -> None:
    made = service(0.0)
    assert refused(made) == {}
    assert not made.ledger.gates.slow_admissions._rows


def test_nodes_that_are_alike_are_estimated_once_for_all_pods_of_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    made, calls = service(1.0), []
    estimate = cost.estimate
    monkeypatch.setattr(cost, "estimate", lambda node, view: calls.append(view) or estimate(node, view))
    for _ in range(3):
        refused(made)
    assert len(calls) == 1
    refused(made, "2Gi")
    assert len(calls) == 2
