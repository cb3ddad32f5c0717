"""`filter.bestNodes`: filter names only the best nodes, where no other plug-in changes the order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from claim_objects import ClaimService, claiming
from scheduling import Service, counts, pod, sent
from topowise_scheduler.serve.extender.shortlist import Shortlist
from topowise_scheduler.serve.extender.verbs import Verbs

_NAMES = ["n1", "n2", "n3", "n4", "n5"]
# LeastAllocated prefers the emptier node.
_TAKEN = {"n1": 3, "n2": 1, "n3": 4, "n4": 0, "n5": 2}
_PREFERRED: dict[str, Any] = {
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
            ]
        }
    }
}
_SPREAD: dict[str, Any] = {
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ]
}


@pytest.fixture
def service() -> Service:
    started = Service()
    for name, cpus in _TAKEN.items():
        started.report(counts(name, str(8 - cpus), included=()))
    return started


def verbs(service: Service, most: int) -> Verbs:
    return service.verbs(shortlist=Shortlist(service.answers, service.ledger, service.nodes, most))


def body(document: dict[str, Any], names: list[str] = _NAMES) -> bytes:
    """Encodes the request as Go does: without blanks, in this order."""
    return msgspec.json.encode({"Pod": document, "Nodes": None, "NodeNames": names})


def passing(served: Verbs, document: dict[str, Any]) -> list[str]:
    answer = sent(served.filter(body(document)))
    assert answer["Error"] == ""
    names: list[str] = answer["NodeNames"]
    return names


@pytest.mark.parametrize(("most", "expected"), [(1, ["n4"]), (2, ["n4", "n2"]), (3, ["n4", "n2", "n5"])])
def test_the_best_nodes_are_named_best_first(service: Service, most: int, expected: list[str]) -> None:
    assert passing(verbs(service, most), pod("new")) == expected


def test_the_named_node_is_where_the_pod_is_expected(service: Service) -> None:
    before = service.free("n4")
    passing(verbs(service, 1), pod("new", "2"))
    assert sum(service.free("n4")) == sum(before) - 2


def test_the_scores_of_a_short_list_are_of_these_nodes(service: Service) -> None:
    served = verbs(service, 2)
    names = passing(served, pod("new"))
    scores = sent(served.prioritize(body(pod("new"), names)))
    assert [score["Host"] for score in scores] == names
    assert scores[0]["Score"] > scores[1]["Score"]


@pytest.mark.parametrize("spec", [_PREFERRED, _SPREAD], ids=["affinity", "spread"])
def test_a_pod_with_preferences_gets_all_nodes(service: Service, spec: dict[str, Any]) -> None:
    document = pod("new")
    document["spec"] |= spec
    assert passing(verbs(service, 1), document) == _NAMES


def test_best_nodes_that_kube_scheduler_avoids_are_not_the_only_named_nodes(service: Service) -> None:
    service.put_node("n4", {"taints": [{"key": "old", "effect": "PreferNoSchedule"}]})
    assert passing(verbs(service, 1), pod("new")) == _NAMES


def test_a_pod_indifferent_to_numa_nodes_gets_all_nodes(service: Service) -> None:
    document = pod("new")
    document["spec"]["containers"][0]["resources"] = {}
    assert passing(verbs(service, 1), document) == _NAMES


def test_a_member_of_a_gang_gets_the_same_node_on_every_request(service: Service) -> None:
    document = pod("new")
    document["spec"] |= _PREFERRED | {"schedulingGroup": {"podGroupName": "wide"}}
    served = verbs(service, 0)
    assert [passing(served, document) for _ in range(2)] == [["n4"], ["n4"]]


def test_a_pod_whose_claim_is_not_known_yet_gets_all_nodes() -> None:
    """The watch may bring the claim before the scores are asked for; the best node of an unknown claim is any node."""
    service = ClaimService()
    for name in _NAMES:
        service.put_node(name)
        service.report(counts(name, "8", included=()))
        service.put_devices(name, 0)
    served = verbs(service, 1)
    assert passing(served, claiming("early", "2", "late-claim")) == _NAMES
    service.put_claim("known-claim")
    assert len(passing(served, claiming("new", "2", "known-claim"))) == 1
