"""What is kept of a pod, and what pods share."""

from typing import Any

import msgspec
import pytest

from refusal_words import refusals
from scheduling import kubelet
from topowise import pods
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.ledger.pods.records import Records
from topowise_scheduler.verdicts.refusals import PREFIX, Refusal


def pod(name: str = "p", *, cpu: str = "2", status: dict[str, Any] | None = None, **spec: Any) -> bytes:
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return msgspec.json.encode(
        {
            "metadata": {"name": name, "namespace": "n", "uid": f"uid-{name}", "labels": {"app": "a"}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}], **spec},
            "status": status or {"phase": "Pending"},
        }
    )


@pytest.fixture
def records() -> Records:
    return Records()


def test_pods_of_one_shape_share_requests_and_labels(records: Records) -> None:
    first, second, larger = (records.decode(pod(name, cpu=cpu)) for name, cpu in (("a", "2"), ("b", "2"), ("c", "3")))
    assert first.requests is second.requests is not None
    assert first.labels is second.labels
    assert first.shape == second.shape != larger.shape


def test_other_words_for_the_same_are_the_same(records: Records) -> None:
    first, second = records.decode(pod("a", cpu="2")), records.decode(pod("b", cpu="2000m"))
    assert first.requests is second.requests is not None
    assert first.shape == second.shape
    # The API server sets the QoS class, which decides whether CPUs are exclusive.
    burstable = records.decode(pod("c", cpu="2", status={"phase": "Pending", "qosClass": "Burstable"}))
    assert burstable.needs is not None and burstable.needs.qos == "Burstable"
    assert burstable.shape != first.shape


GATES = {"on": {}, "managers": {"PodLevelResourceManagers": True}, "off": {"PodLevelResources": False}}


@pytest.mark.parametrize("gates", GATES.values(), ids=GATES)
@pytest.mark.parametrize("level", [None, {"limits": {"cpu": "4", "memory": "4Gi"}}], ids=["containers", "pod level"])
def test_a_pod_is_seen_as_its_kubelet_sees_it_and_looked_at_once_for_all_of_its_kind(
    records: Records, gates: dict[str, bool], level: dict[str, Any] | None
) -> None:
    spec = {} if level is None else {"resources": level}
    first, second = (records.decode(pod(name, **spec)) for name in "ab")
    node = kubelet(featureGates=gates)
    seen = pods.decode(pod("a", **spec))
    needs = pods.needs(seen, pod_level_resources=node.settings.pod_level_resources)
    assert first.view(node) == node.view("uid-a", needs)
    assert second.view(node).uid == "uid-b"
    assert second.view(node).containers is first.view(node).containers


@pytest.mark.parametrize(
    ("phase", "node", "stage"),
    [
        ("Pending", "", "pending"),
        ("Pending", "n1", "assigned"),
        ("Running", "n1", "assigned"),
        ("Failed", "n1", "ended"),
    ],
)
def test_stage(records: Records, phase: str, node: str, stage: str) -> None:
    assert records.decode(pod(nodeName=node, status={"phase": phase})).status.stage == stage


@pytest.mark.parametrize(
    ("reason", "is_recorded"),
    [
        ("TopologyAffinityError", True),
        ("SMTAlignmentError", True),
        ("PodLevelResourcesNotSupported", True),
        ("Evicted", False),
        ("OutOfcpu", False),
    ],
)
def test_a_kubelets_refusal_is_kept(records: Records, reason: str, is_recorded: bool) -> None:
    record = records.decode(pod(nodeName="n1", status={"phase": "Failed", "reason": reason}))
    assert record.status.refusal == (reason if is_recorded else "")


@pytest.mark.parametrize(
    ("message", "waits"),
    [
        (f"0/3 nodes are available: 3 {refusals.NOT_NOW}. preemption: 0/3 nodes are available", True),
        ("0/3 nodes are available: 3 Insufficient cpu.", False),
    ],
)
def test_a_pod_that_waits_because_of_us_is_known_by_the_words(records: Records, message: str, waits: bool) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    assert records.decode(pod(status={"phase": "Pending", "conditions": [condition]})).status.waits is waits


def test_a_malformed_quantity_is_a_problem_of_that_pod_only(records: Records) -> None:
    record = records.decode(pod(cpu="two"))
    assert record.needs is None
    assert "two" in str(record.problem)


def test_every_refusal_has_the_prefix_and_no_number() -> None:
    texts = [TEXTS[refusal] for refusal in Refusal]
    assert len(texts) == len(set(texts)) > 8
    assert not any(map(str.isdigit, "".join(texts)))
    assert all(TEXTS[refusal].startswith(PREFIX) == (refusal < Refusal.BEFORE_OTHERS) for refusal in Refusal)
