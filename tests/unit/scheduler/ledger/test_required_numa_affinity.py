"""Pods that require the NUMA node of other pods, or a NUMA node apart from them: filter, reservation and requeue."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling import Service, counts, exact, kubelet, pod
from steering_pods import marked
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.options.steering.choice import views_of
from topowise_scheduler.verdicts.refusals import Refusal

BESIDE = "require same: app=cache"
APART = "require apart: app=cache"
CACHE = {"app": "cache"}


def refusal(service: Service, document: dict[str, Any], node: str = "n1") -> str:
    return service.answers.verdicts(service.question(document, node)).refusal(0)


def wanting(name: str, text: str, *cpus: str, **fields: Any) -> dict[str, Any]:
    return marked(name, *cpus, annotations={"topowise.io/numa-affinity": text}, **fields)


def made(numa: int | None = 1, *, markers: int | None = 512, is_off: bool = False, **there: Any) -> Service:
    """Returns a service whose node n1 has a pod of two CPUs with the label app=cache on this NUMA node."""
    service = Service(markers=lambda name: markers, steers=not is_off)
    node = kubelet()
    if numa is not None:
        record = service.put(marked("cache", "2", node="n1", **{"labels": CACHE, **there}), is_news=False)
        assert node.admit_view(views_of(record)(numa)(node)).admitted
    service.report(exact(node))
    return service


@pytest.mark.parametrize(
    ("text", "cpus", "expected"),
    [
        (BESIDE, "2", None),
        (BESIDE, "3", Refusal.NUMA_NODE_FULL),
        (APART, "3", None),
        ("require same: pod/cache", "2", None),
        ("require same: pod/other", "2", Refusal.NO_POD_BESIDE),
        ("require apart: pod/other", "2", None),
        ("prefer same: pod/other; prefer same: app=cache", "2", None),
        (f"{BESIDE}; {APART}", "2", Refusal.NO_COMMON_NUMA_NODE),
    ],
)
def test_a_node_fits_if_a_numa_node_with_room_meets_each_required_term(
    text: str, cpus: str, expected: Refusal | None
) -> None:
    """NUMA node 0 has three free CPUs, NUMA node 1 has two."""
    assert refusal(made(), wanting("a", text, cpus)) == expected


def test_pods_of_other_namespaces_do_not_count() -> None:
    service = made(None)
    document = marked("cache", "2", node="n1", labels=CACHE)
    document["metadata"]["namespace"] = "other"
    service.put(document)
    assert refusal(service, wanting("a", BESIDE)) == Refusal.NO_POD_BESIDE
    assert refusal(service, wanting("a", APART, "1")) is None


def test_a_pod_on_each_numa_node_leaves_none_apart() -> None:
    service, node = Service(), kubelet()
    for numa in (0, 1):
        record = service.put(marked(f"cache-{numa}", "1", node="n1", labels=CACHE), is_news=False)
        assert node.admit_view(views_of(record)(numa)(node)).admitted
    service.report(exact(node))
    assert refusal(service, wanting("a", APART, "1")) == Refusal.NONE_APART
    assert refusal(service, wanting("a", "prefer apart: app=cache", "1")) is None


def test_both_annotations_have_to_be_met() -> None:
    service = made()
    document = wanting("a", BESIDE)
    document["metadata"]["annotations"]["topowise.io/numa-node"] = "0"
    assert refusal(service, document) == Refusal.NO_COMMON_NUMA_NODE
    document["metadata"]["annotations"]["topowise.io/numa-node"] = "1"
    assert refusal(service, document) is None


def test_a_pod_whose_numa_node_is_not_known_yet_is_waited_for() -> None:
    """It was bound by another scheduler, and no report lists it."""
    service = made(None)
    record = service.put(pod("cache", "2", node="n1", labels=CACHE))
    assert refusal(service, wanting("a", BESIDE)) == Refusal.PODS_NOT_LOCATED
    assert refusal(service, wanting("a", APART)) == Refusal.PODS_NOT_LOCATED
    node = kubelet()
    assert node.admit_view(record.view(node)).admitted
    service.report(exact(node, "2"))
    assert refusal(service, wanting("a", BESIDE, "1")) is None
    assert refusal(service, wanting("a", APART, "4")) is None


def test_amounts_do_not_say_where_a_pod_is() -> None:
    service = Service()
    service.put(pod("cache", "2", node="n1", labels=CACHE), is_news=False)
    service.report(counts("n1", ("4", "2"), included=("cache",)))
    assert refusal(service, wanting("a", BESIDE)) == Refusal.PODS_NOT_LOCATED


def test_pods_without_resources_of_a_numa_node_do_not_count() -> None:
    service = made(None)
    shared = {"name": "c", "resources": {"requests": {"cpu": "100m"}}}
    service.put(pod("cache", node="n1", labels=CACHE, containers=[shared]))
    assert refusal(service, wanting("a", BESIDE)) == Refusal.NO_POD_BESIDE
    assert refusal(service, wanting("a", APART)) is None


def test_the_first_pod_of_a_group_fits_anywhere() -> None:
    service = made(None)
    assert refusal(service, wanting("a", BESIDE, "4", labels=CACHE)) is None
    # NUMA node 0 has three free CPUs.
    assert refusal(made(0), wanting("a", BESIDE, "2", labels=CACHE)) == Refusal.NUMA_NODE_FULL


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ({"is_off": True}, BESIDE, Refusal.STEERING_IS_OFF),
        ({"markers": None}, BESIDE, Refusal.NODE_HAS_NO_MARKERS),
        ({"markers": 0}, BESIDE, Refusal.TOO_FEW_MARKERS),
        ({"markers": None}, "require same: pod/other", Refusal.NO_POD_BESIDE),
        ({"is_off": True}, "require apart: pod/other", None),
        ({"is_off": True}, "prefer same: app=cache", None),
        ({"markers": None}, "prefer same: app=cache", None),
    ],
)
def test_without_steering_a_node_fits_if_nothing_is_required_there(
    options: dict[str, Any], text: str, expected: Refusal | None
) -> None:
    assert refusal(made(**options), wanting("a", text)) == expected


def test_a_pod_without_markers_cannot_be_steered() -> None:
    document = pod("a", annotations={"topowise.io/numa-affinity": BESIDE})
    assert refusal(made(), document) == Refusal.NO_MARKERS
    document["metadata"]["annotations"]["topowise.io/numa-affinity"] = "require apart: pod/other"
    assert refusal(made(), document) is None


def test_a_reservation_is_on_the_required_numa_node() -> None:
    """The kubelet alone would take NUMA node 0."""
    service = made()
    service.reserve(wanting("a", BESIDE, "1"))
    assert service.free("n1") == [3, 1]


def test_the_verdict_follows_the_labels_of_the_pods() -> None:
    service = made()
    assert refusal(service, wanting("a", BESIDE)) is None
    service.put(marked("cache", "2", node="n1", labels={"app": "other"}))
    assert refusal(service, wanting("a", BESIDE)) == Refusal.NO_POD_BESIDE


def test_a_waiting_pod_is_tried_again_when_a_pod_comes_beside_which_it_has_to_be() -> None:
    service = made(None)
    node_states = service.ledger.node_states
    refused = [{"type": "PodScheduled", "status": "False", "message": f"0/1 nodes: {TEXTS[Refusal.NO_POD_BESIDE]}"}]
    service.put(wanting("a", BESIDE, conditions=refused))
    node_states.take_improved()
    service.put(marked("other", "1", node="n1"))
    assert node_states.take_improved() == set()
    service.put(marked("cache", "1", node="n1", labels=CACHE))
    assert node_states.take_improved() == {"n1"}
    # A pod whose labels change comes too.
    service.put(marked("other", "1", node="n1", labels=CACHE))
    assert node_states.take_improved() == {"n1"}
    service.ledger.drop_pod("uid-a")
    service.put(marked("cache-2", "1", node="n1", labels=CACHE))
    assert node_states.take_improved() == set()


def test_waiting_pods_that_require_other_numa_nodes_are_tried_apart() -> None:
    """Requests alone do not say which nodes take a pod."""
    service = Service()
    demands = [service.put(document).demands for document in (wanting("a", BESIDE), wanting("b", APART), marked("c"))]
    assert len(set(demands)) == 3


def test_volcano_binds_no_pod_that_has_to_be_steered() -> None:
    service = made()
    record = service.put(wanting("a", BESIDE))
    assert record.needs is not None
    answer = service.ledger.reservations.put_for_other_binder(record, record.needs, "n1", 10.0)
    assert answer == Refusal.NOT_STEERED_BY_BINDER
    plain = service.put(marked("b"))
    assert plain.needs is not None
    assert service.ledger.reservations.put_for_other_binder(plain, plain.needs, "n1", 10.0) is None
