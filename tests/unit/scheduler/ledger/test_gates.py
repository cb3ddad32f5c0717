"""A single list of gates: filter and bind refuse the same node for the same reason, whatever closes the node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import Service, configuration, counts, exact, kubelet, machine, pod
from topowise import nrt
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.pods.records import MAX_CONTAINERS
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.refusals import Refusal


def restarting(service: Service) -> None:
    node = exact(kubelet(), "2")
    marked = nrt.Attribute("topowise.io/unconfirmed", "pods")
    service.report(msgspec.structs.replace(node, attributes=(*node.attributes, marked)))


def refused_before(service: Service) -> None:
    service.report(exact(kubelet(), "2"))
    service.refuse(pod("gone", "2"), "n1")


def full(service: Service) -> None:
    service.report(counts("n1", "0", included=["other"]))
    service.put(pod("other", "8", node="n1"))


def slow(service: Service) -> None:
    config = configuration(
        topologyManagerPolicy="restricted", topologyManagerPolicyOptions={"max-allowable-numa-nodes": "16"}
    )
    node = exported(machine(12), config, Kubelet(machine(12), config), lambda uid: ("default", uid))
    service.report(
        msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, name="n1", resourceVersion="2"))
    )


def weak_policy(service: Service) -> None:
    policy = {"topologyManagerPolicy": "best-effort"}
    service.report(exact(Kubelet(machine(), configuration(**policy)), "2", **policy))


def new(service: Service) -> None:
    service.ledger.reports.drop("n1")
    service.join("n1")
    service.put_exporter("n1", ready=False)


def without_exporter(service: Service) -> None:
    service.report(exact(kubelet(), "2"))
    service.put_exporter("n1", ready=False)
    for _ in range(2):
        service.ledger.tick()
        service.clock.now += 121
    service.ledger.tick()
    service.put(pod("unreported", "1", node="n1"))


SITUATIONS: dict[str, tuple[Callable[[Service], None], dict[str, Any]]] = {
    "quarantine": (refused_before, {}),
    "unconfirmed": (restarting, {}),
    "capacity": (full, {}),
    "slow": (slow, {}),
    "new": (new, {}),
    "exporter": (without_exporter, {}),
    "policy": (weak_policy, {"annotations": {"topowise.io/numa-policy": "single-numa-node"}}),
    "unreported": (lambda _: None, {"annotations": {"topowise.io/numa-policy": "single-numa-node"}}),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_filter_refuses_is_not_bound(situation: str) -> None:
    close, fields = SITUATIONS[situation]
    service = Service(max_admission_s=1.0)
    record = service.put(pod("p", "2", **fields))
    close(service)
    assert service.fits(pod("p", "2", **fields), "n1") == []
    assert service.ledger.gates.all(record, "n1")
    assert record.needs is not None
    assert service.assume(record)
    assert service.ledger.reservations.put_for_other_binder(record, record.needs, "n1", 30.0)
    assert not service.ledger.pods.of(record.uid).node


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_pod_that_was_let_there_before_is_not_bound_once_a_gate_is_closed(situation: str) -> None:
    close, fields = SITUATIONS[situation]
    service = Service(max_admission_s=1.0)
    if situation != "unreported":
        service.report(exact(kubelet(), "1"))
    record = service.reserve(pod("p", "2", **fields), judged_at=service.ledger.node_states.changes)
    close(service)
    assert service.assume(record)


@pytest.mark.parametrize(
    ("situation", "verdict", "texts"),
    [
        ("unconfirmed", "not now", [TEXTS[Refusal.UNCONFIRMED], "(pods)"]),
        ("slow", "never", [f"{TEXTS[Refusal.TOO_SLOW]}; its kubelet takes about 5 seconds to decide"]),
        ("new", "not now", [TEXTS[Refusal.NEW_NODE]]),
        ("exporter", "not now", [TEXTS[Refusal.EXPORTER_DOWN], "(exporter-down)"]),
    ],
)
def test_explanations_give_the_same_refusal(situation: str, verdict: str, texts: list[str]) -> None:
    service = Service(max_admission_s=1.0)
    SITUATIONS[situation][0](service)
    (shown,) = service.view.explanations(msgspec.convert(pod("p", "2"), kube_scheduler.Pod), ["n1"])
    assert (shown.verdict, [text for text in texts if text not in shown.text]) == (verdict, [])


def test_of_several_gates_the_first_says_why_in_filter_and_bind() -> None:
    service = Service(max_admission_s=1.0)
    weak_policy(service)
    fields = {"annotations": {"topowise.io/numa-policy": "single-numa-node"}}
    service.put(pod("gone", "2", node="n1", phase="Failed", reason="TopologyAffinityError", **fields))
    record = service.put(pod("p", "2", **fields))
    verdicts = service.answers.verdicts(service.question(pod("p", "2", **fields), "n1"))
    assert verdicts.refusal(0) == service.ledger.gates.all(record, "n1") == service.ledger.gates.standing(record, "n1")


def test_a_standing_gate_is_not_opened_by_capacity() -> None:
    service = Service()
    full(service)
    record = service.put(pod("p", "2"))
    assert service.ledger.gates.standing(record, "n1") is None
    refused_before(service)
    assert service.ledger.gates.standing(record, "n1")


def test_a_pod_that_is_too_large_is_refused_by_filter_and_for_a_single_node() -> None:
    service = Service()
    service.report(exact(kubelet(), "1"))
    document = pod("p", "2")
    document["spec"]["containers"] *= MAX_CONTAINERS + 1
    record = service.put(document)
    assert service.fits(document, "n1") == []
    assert service.ledger.gates.all(record, "n1") == Refusal.TOO_LARGE
    assert service.ledger.gates.at_bind(record, "n1") == Refusal.TOO_LARGE
