"""What the lab makes of counts."""

from __future__ import annotations

import pytest

from lab.cluster import is_refused
from lab.gated import admissions
from lab.machine import read
from lab.parts.occupied import refusals
from lab.placing import is_judged, is_offered
from lab.results import came_true
from lab.series import small


def test_a_series_has_the_predictions_of_its_own_time() -> None:
    before = {"ids": 40.0, "hint": 2.0, "missed": 7.0, "verdicts": 90.0, "waits": 5.0}
    after = {"ids": 136.0, "hint": 3.0, "missed": 10.0, "verdicts": 99.0, "waits": 6.0}
    assert list(came_true(before, after).values()) == [97, 3, 9, 1]


def test_a_pod_that_a_later_decision_overtook_is_not_in_order() -> None:
    log = "".join(
        f'I1128 scope_container.go:93] "TopologyHints" hints={{"cpu":[]}} pod="default/{name}" containerName="main"\n'
        for name in ("other", "a", "a", "c", "b", "d")
    )
    assert admissions(log, {"a": 0, "b": 1, "c": 2, "d": 3}) == (3, ["b after c"])


def test_an_evicted_pod_is_not_a_refused_pod() -> None:
    admitted = {"phase": "Running", "conditions": [{"type": "Initialized", "status": "True"}]}
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    refused = {**evicted, "message": "The node had condition: [MemoryPressure]."}
    changes = [
        (0.0, "a", {"spec": {"nodeName": "dual"}, "status": admitted}),
        (1.0, "a", {"spec": {"nodeName": "dual"}, "status": evicted}),
        (2.0, "b", {"spec": {"nodeName": "dual"}, "status": evicted}),
        (3.0, "c", {"spec": {"nodeName": "dual"}, "status": refused}),
    ]
    assert refusals(changes) == (["c on dual: Evicted: The node had condition: [MemoryPressure]."], [])


def test_a_pod_deleted_before_it_ran_is_not_a_refused_pod() -> None:
    assert is_refused({"status": {"phase": "Failed", "reason": "TopologyAffinityError"}})
    assert not is_refused({"status": {"phase": "Failed"}})
    assert not is_refused({"status": {"phase": "Pending", "reason": "x"}})


def test_a_pod_that_its_kubelet_had_admitted_before_was_not_refused_after_fits() -> None:
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices"}
    admitted = {"phase": "Pending", "conditions": [{"type": "Initialized", "status": "False"}]}
    bound = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    changes = [
        (float(at), name, {"spec": {"nodeName": "dual"}, "status": status})
        for at, (name, status) in enumerate(
            [("a", bound), ("b", bound), ("a", admitted), ("a", refused), ("b", refused)]
        )
    ]
    new, again = refusals(changes)
    assert new == ["b on dual: UnexpectedAdmissionError: no healthy devices"]
    assert again == ["a on dual: UnexpectedAdmissionError: no healthy devices"]


def test_a_kubelet_ignores_extended_resources_that_its_node_does_not_have() -> None:
    """So the kubelet cannot refuse such a pod."""
    asks = small("a", sizes={"example.com/gpu": "1"})
    assert is_offered(asks, read("dual"))
    assert not is_offered(asks, read("memory"))


@pytest.mark.parametrize(
    ("verdict", "reason", "expected"),
    [
        ("not now", "TopologyAffinityError", True),
        ("never", "OutOfcpu", True),
        ("fits", "", False),
        ("excluded", "", False),
        pytest.param("not now", "", False, id="Insufficient example.com/gpu, by kube-scheduler alone"),
    ],
)
def test_a_kubelet_is_asked_only_about_its_own_refusals(verdict: str, reason: str, expected: bool) -> None:
    """kube-scheduler counts a pod whose device became unhealthy against the healthy devices; the kubelet raises its
    allocatable amount to the allocated devices (sanitizeNodeAllocatable), and takes another pod."""
    assert is_judged({"verdict": verdict, "reason": reason}) is expected
