"""Pods decode to the few fields that matter, and their requests equal the API server's and the kubelet's."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from topowise import pods
from topowise.errors import ParseError


def _pod(spec: dict[str, Any], **status: str) -> pods.Pod:
    return pods.decode(json.dumps({"metadata": {"name": "p", "uid": "u"}, "spec": spec, "status": status}))


def _container(
    name: str, limits: dict[str, Any] | None = None, requests: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": limits, "requests": requests}, **more}


def _guaranteed(cpu: Any, memory: Any) -> dict[str, Any]:
    return _container("c", {"cpu": cpu, "memory": memory})


def test_a_pod_decodes_to_the_fields_that_matter() -> None:
    pod = pods.decode(
        b"""{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n","uid":"u","resourceVersion":"7",
        "labels":{"a":"b"},"annotations":{"c":"d"},"deletionTimestamp":"2026-01-01T00:00:00Z","managedFields":[{}]},
        "spec":{"nodeName":"node","schedulerName":"s","priority":5,"containers":[{"name":"c","image":"x"}],
        "ephemeralContainers":[{"name":"debug"}],"volumes":[]},
        "status":{"phase":"Running","nominatedNodeName":"m","qosClass":"BestEffort","conditions":[]}}"""
    )
    assert pod.metadata == pods.Metadata(
        name="p",
        namespace="n",
        uid="u",
        resourceVersion="7",
        deletionTimestamp="2026-01-01T00:00:00Z",
        labels={"a": "b"},
        annotations={"c": "d"},
    )
    assert (pod.spec.nodeName, pod.spec.schedulerName, pod.spec.priority) == ("node", "s", 5)
    assert pod.status == pods.Status(phase="Running", qosClass="BestEffort", nominatedNodeName="m")
    assert [container.name for container in pod.spec.containers or ()] == ["c"]


def test_null_lists_and_absent_objects_are_empty() -> None:
    pod = pods.decode(b'{"metadata":{},"spec":{"containers":null,"initContainers":null,"overhead":null}}')
    assert pods.needs(pod) == pods.Needs((), {}, "BestEffort")
    assert not pod.is_terminal


@pytest.mark.parametrize(
    ("phase", "terminal"), [("Succeeded", True), ("Failed", True), ("Running", False), ("Pending", False), ("", False)]
)
def test_a_pod_that_ended_is_terminal(phase: str, terminal: bool) -> None:
    assert _pod({"containers": []}, phase=phase).is_terminal is terminal


def test_something_that_is_no_pod_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        pods.decode(b'{"metadata":{},"spec":{"containers":[{"image":"x"}]}}')


@pytest.mark.parametrize(
    ("resource", "value", "amount"),
    [
        ("cpu", "1500m", 1500),
        ("cpu", 2, 2000),
        ("cpu", 0.5, 500),
        ("cpu", "0.0001", 1),
        ("memory", "1Gi", 1 << 30),
        ("memory", 1e9, 10**9),
        ("memory", None, 0),
        ("x.io/gpu", "3", 3),
    ],
)
def test_quantities_may_be_text_numbers_or_null(resource: str, value: Any, amount: int) -> None:
    needs = pods.needs(_pod({"containers": [_container("c", requests={resource: value})]}))
    assert needs.containers[0].requests == {resource: amount}


def test_a_malformed_quantity_is_named() -> None:
    with pytest.raises(ParseError, match="'much'"):
        pods.needs(_pod({"containers": [_container("c", {"cpu": "much"})]}))


def test_requests_default_to_limits() -> None:
    needs = pods.needs(_pod({"containers": [_container("c", {"cpu": "2", "x.io/gpu": "1"}, {"cpu": "1"})]}))
    assert needs.containers[0].requests == {"cpu": 1000, "x.io/gpu": 1}
    assert needs.containers[0].limits == {"cpu": 2000, "x.io/gpu": 1}


def test_memory_that_is_no_whole_number_of_bytes_is_marked() -> None:
    needs = pods.needs(
        _pod({"containers": [_container("c", {"memory": "1500m", "cpu": "1500m", "hugepages-2Mi": "2Mi"})]})
    )
    assert needs.containers[0].fractional == ("memory",)
    assert needs.containers[0].requests["memory"] == 2


def test_kinds_follow_the_lists_and_the_restart_policy() -> None:
    pod = _pod(
        {
            "containers": [_container("app")],
            "initContainers": [_container("side", restartPolicy="Always"), _container("once", restartPolicy="Never")],
        }
    )
    assert [(container.name, container.kind) for container in pods.needs(pod).containers] == [
        ("side", "sidecar"),
        ("once", "init"),
        ("app", "app"),
    ]


@pytest.mark.parametrize(
    ("init", "apps", "expected"),
    [
        ([], [("c", 1), ("d", 2)], 3),
        ([("i", 5)], [("c", 1), ("d", 2)], 5),
        ([("i", 5), ("s", 1, "Always")], [("c", 5)], 6),  # sidecar beside the apps, not beside the step before it
        ([("s", 1, "Always"), ("i", 5)], [("c", 1)], 6),  # sidecar beside the later step
        ([("s", 1, "Always"), ("t", 2, "Always")], [], 3),
    ],
)
def test_the_effective_request_is_the_largest_step(init: list[Any], apps: list[Any], expected: int) -> None:
    def listed(steps: list[Any]) -> list[dict[str, Any]]:
        return [
            _container(name, requests={"cpu": cpu}, restartPolicy=policy[0] if policy else None)
            for name, cpu, *policy in steps
        ]

    needs = pods.needs(_pod({"initContainers": listed(init), "containers": listed(apps)}))
    assert needs.requests == {"cpu": expected * 1000}


def test_overhead_is_added_and_pod_level_requests_replace() -> None:
    spec = {
        "containers": [_container("c", {"cpu": "1", "memory": "1Gi", "x.io/gpu": "2"})],
        "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "4"}},
        "overhead": {"cpu": "250m"},
    }
    needs = pods.needs(_pod(spec))
    assert needs.requests == {"cpu": 3250, "memory": 1 << 30, "x.io/gpu": 2}
    assert needs.pod_level == pods.PodLevel({"cpu": 3000, "memory": 1 << 30}, {"cpu": 4000})
    assert pods.needs(_pod(spec), pod_level_resources=False).requests["cpu"] == 1250


def test_pod_level_requests_default_to_containers_then_to_pod_limits() -> None:
    needs = pods.needs(
        _pod(
            {
                "containers": [_container("c", {"hugepages-2Mi": "4Mi"}, {"cpu": "1"})],
                "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            }
        )
    )
    assert needs.pod_level == pods.PodLevel(
        {"cpu": 1000, "memory": 1 << 30, "hugepages-2Mi": 4 << 20},
        {"cpu": 2000, "memory": 1 << 30, "hugepages-2Mi": 4 << 20},
    )


def test_pod_level_resources_that_name_nothing_supported_are_none() -> None:
    needs = pods.needs(_pod({"containers": [_guaranteed(1, 1)], "resources": {"limits": {"x.io/gpu": "1"}}}))
    assert needs.requests == {"cpu": 1000, "memory": 1}
    assert pods.needs(_pod({"containers": [], "resources": {}})).pod_level is None


@pytest.mark.parametrize(
    ("spec", "qos"),
    [
        ({"containers": [_container("c")]}, "BestEffort"),
        ({"containers": [_container("c", {"x.io/gpu": "1"})]}, "BestEffort"),
        ({"containers": [_container("c", {"cpu": "0", "memory": "0"})]}, "BestEffort"),
        ({"containers": [_guaranteed("1", "1Gi")]}, "Guaranteed"),
        ({"containers": [_guaranteed("1", "1Gi"), _container("d")]}, "Burstable"),
        ({"containers": [_guaranteed("1", "1Gi")], "initContainers": [_container("i")]}, "Burstable"),
        ({"containers": [_container("c", {"cpu": "1"})]}, "Burstable"),
        ({"containers": [_container("c", {"cpu": "2", "memory": "1Gi"}, {"cpu": "1"})]}, "Burstable"),
        ({"containers": [_container("c", {"cpu": "1", "memory": "1Gi"}, {"cpu": "0"})]}, "Burstable"),
        # Sums are compared, not containers.
        (
            {
                "containers": [
                    _container("c", {"cpu": "1", "memory": "1Gi"}, {"cpu": "500m"}),
                    _container("d", {"cpu": "1", "memory": "1Gi"}, {"cpu": "1500m"}),
                ]
            },
            "Guaranteed",
        ),
        ({"containers": [_container("c")], "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}, "Guaranteed"),
        ({"containers": [_guaranteed("1", "1Gi")], "resources": {"requests": {"cpu": "2"}}}, "Burstable"),
        ({"containers": [_guaranteed("1", "1Gi")], "resources": {}}, "BestEffort"),
    ],
)
def test_the_class_is_computed_as_the_kubelet_does(spec: dict[str, Any], qos: str) -> None:
    assert pods.needs(_pod(spec)).qos == qos


@pytest.mark.parametrize(
    ("stated", "qos"), [("Burstable", "Burstable"), ("", "Guaranteed"), ("Platinum", "Guaranteed")]
)
def test_the_class_in_the_status_wins(stated: str, qos: str) -> None:
    assert pods.needs(_pod({"containers": [_guaranteed("1", "1Gi")]}, qosClass=stated)).qos == qos
