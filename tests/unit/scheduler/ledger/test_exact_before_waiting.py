"""Before a pod waits for the report of other pods, the model decides where exactly these pods may lie."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling import Service, configuration, container, decoded, machine, pod, topology_of
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.verdicts.refusals import Refusal

ZONES = 4


def reported(service: Service, **changed: Any) -> None:
    node = Kubelet(machine(ZONES), configuration(**changed))
    service.report(topology_of(machine(ZONES), configuration(**changed), node, "1"))


def binds(service: Service, name: str, cpu: str, memory: str = "1Gi", **spec: Any) -> None:
    service.reserve(pod(name, cpu, memory, **spec))
    service.put(pod(name, cpu, memory, node="n1", **spec))


def text(service: Service, document: dict[str, Any]) -> Refusal | None:
    return service.answers.verdicts(service.question(document, "n1")).refusal(0)


def is_refused_by_amounts(service: Service, document: dict[str, Any]) -> bool:
    """Returns whether a state refuses the pod that follows from the amounts of the newest pods alone."""
    states = service.ledger.node_states.states("n1", ())
    return any(not state.admit(decoded(document)).admitted for state in states)


def test_a_pod_beside_memory_over_several_numa_nodes_does_not_wait() -> None:
    """No other pod has ended there, as there is none. NUMA nodes 2 and 3 have all their memory."""
    service = Service()
    reported(service, topologyManagerPolicy="best-effort")
    binds(service, "wide", "1", "20Gi")
    newcomer = pod("next", "1", "20Gi")
    assert is_refused_by_amounts(service, newcomer)
    assert not text(service, newcomer)


def test_a_pod_waits_where_an_end_may_have_moved_memory_in_its_way() -> None:
    """Alone the wide pod would have NUMA nodes 0 and 1, and beside the first pod it has NUMA nodes 1 and 2."""
    service = Service()
    reported(service, topologyManagerPolicy="best-effort")
    binds(service, "low", "1", "4Gi")
    service.put(pod("low", "1", "4Gi", node="n1", phase="Running"))
    service.wait(3)
    binds(service, "wide", "1", "20Gi")
    assert not text(service, pod("small", "1", "8Gi"))
    assert text(service, pod("next", "1", "20Gi"))


def test_unlike_pods_with_init_containers_do_not_keep_a_pod_away() -> None:
    service = Service()
    reported(service, topologyManagerPolicy="single-numa-node")
    first = [container({"cpu": "1", "memory": "1Gi"}, "i")]
    for name, memory in (("a", "1Gi"), ("b", "2Gi"), ("c", "3Gi")):
        binds(service, name, "1", memory, initContainers=first)
    newcomer = pod("next", "4", "16Gi")
    assert is_refused_by_amounts(service, newcomer)
    assert not text(service, newcomer)


def test_a_bind_is_checked_with_the_same_effort() -> None:
    service = Service()
    reported(service, topologyManagerPolicy="best-effort")
    binds(service, "wide", "1", "20Gi")
    assert service.assume(pod("next", "1", "20Gi")) == ""


def test_states_of_a_node_are_found_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    reported(service, topologyManagerPolicy="best-effort")
    binds(service, "wide", "1", "20Gi")
    gate = service.ledger.gates.capacity
    assert not text(service, pod("next", "1", "20Gi"))
    assert len(gate._exact) == 1
    monkeypatch.setattr(gate._node_states, "states", None)
    assert not text(service, pod("other", "1", "18Gi"))
