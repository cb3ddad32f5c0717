"""filter names one node for a member of a gang: kube-scheduler does not report where it has placed the member."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduling import Service, counts, pod, sent
from topowise_scheduler.serve.extender.verbs import Verbs

# LeastAllocated prefers the emptier node.
_TAKEN = {"n1": 3, "n2": 1, "n3": 4, "n4": 0, "n5": 2}
_NAMES = list(_TAKEN)
_PREFERRED = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}}


@pytest.fixture
def service() -> Service:
    started = Service()
    for name, cpus in _TAKEN.items():
        started.report(counts(name, str(8 - cpus), included=()))
    return started


def member(name: str = "new", cpu: str = "2", **fields: Any) -> dict[str, Any]:
    return pod(name, cpu, schedulingGroup={"podGroupName": "wide"}, affinity=_PREFERRED, **fields)


def asked(verbs: Verbs, document: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a request as Go encodes it: without blanks, in this order."""
    answer: dict[str, Any] = sent(
        verbs.filter(msgspec.json.encode({"Pod": document, "Nodes": None, "NodeNames": _NAMES}))
    )
    return answer


def test_the_best_node_is_named_at_every_request_and_the_other_nodes_with_a_reason(service: Service) -> None:
    verbs = service.verbs()
    for _ in range(2):
        answer = asked(verbs, member(cpu="5"))
        assert answer["NodeNames"] == ["n4"]
        others = answer["FailedAndUnresolvableNodes"]
        assert set(others.values()) == {"node would fit, but topowise named a better node"}
        # n3 has too little.
        assert (others.keys(), answer["FailedNodes"].keys()) == ({"n1", "n2", "n5"}, {"n3"})


def test_a_member_is_expected_on_its_node(service: Service) -> None:
    verbs, before = service.verbs(), service.free("n4")
    asked(verbs, member())
    assert sum(service.free("n4")) == sum(before) - 2
    assert asked(verbs, member("next"))["NodeNames"] == ["n2"]


def test_a_simulation_with_whole_nodes_gets_all_nodes(service: Service) -> None:
    items = [{"metadata": {"name": name}} for name in _NAMES]
    body = msgspec.json.encode({"Pod": member(), "Nodes": {"items": items}, "NodeNames": None})
    answer = sent(service.verbs().filter(body))
    assert answer["Nodes"]["items"] == items


def test_a_member_that_no_kubelet_aligns_gets_all_nodes(service: Service) -> None:
    document = member(containers=[{"name": "c", "resources": {}}])
    assert asked(service.verbs(), document)["NodeNames"] == _NAMES
