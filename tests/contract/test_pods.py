"""Pods and nodes as a scheduler meets them: defaults, quality of service, binding, eviction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandbox.apiserver.client import MERGE, NODES, PODS, STRATEGIC, Client, pod
from sandbox.apiserver.errors import Json


@pytest.fixture
async def pods(api: Client) -> AsyncIterator[Any]:
    """Creates pods, and takes them away at once afterwards (a real server would wait for a kubelet)."""
    created: list[str] = []

    async def create(body: Json) -> Json:
        made = await api.ok("POST", PODS, body)
        created.append(made["metadata"]["name"])
        return made

    yield create
    for name in created:
        await api.call("DELETE", f"{PODS}/{name}", gracePeriodSeconds=0)


def binding(name: str, node: str, **metadata: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


async def test_a_new_pod_is_pending_and_waits_for_the_default_scheduler(api: Client, pods: Any) -> None:
    made = await pods(pod(api.name()))
    assert made["status"]["phase"] == "Pending"
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert made["spec"]["restartPolicy"] == "Always"
    assert made["spec"]["priority"] == 0
    assert "nodeName" not in made["spec"]
    keys = {toleration["key"] for toleration in made["spec"]["tolerations"]}
    assert keys == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


async def test_requests_default_from_limits_resource_by_resource(api: Client, pods: Any) -> None:
    body = pod(api.name(), limits={"cpu": "2", "memory": "1Gi"}, requests={"cpu": "1"})
    made = await pods(body)
    assert made["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "2", "memory": "1Gi"},
        "requests": {"cpu": "1", "memory": "1Gi"},
    }


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}}, "Guaranteed"),
        ({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"example.com/gpu": "1"}}, "BestEffort"),
    ],
)
async def test_quality_of_service_follows_from_the_resources(
    api: Client, pods: Any, resources: Json, expected: str
) -> None:
    made = await pods(pod(api.name(), **resources))
    assert made["status"]["qosClass"] == expected


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("0.5", "500m"),
        ("2000m", "2"),
        ("1500m", "1500m"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("0.1Gi", "107374182400m"),
        ("1.5Gi", "1536Mi"),
        ("2048Ki", "2Mi"),
        ("1025Ki", "1025Ki"),
        ("1e3", "1e3"),
        ("0", "0"),
        (2, "2"),
    ],
)
async def test_quantities_come_back_in_canonical_spelling(
    api: Client, pods: Any, written: str | int, read: str
) -> None:
    made = await pods(pod(api.name(), limits={"memory": written}))
    assert made["spec"]["containers"][0]["resources"]["limits"]["memory"] == read


async def test_a_binding_puts_the_pod_on_its_node(api: Client, pods: Any) -> None:
    name, node = api.name(), api.name()
    await pods(pod(name))
    body = binding(name, node, annotations={"example.com/zone": "1"})
    reply = await api.call("POST", f"{PODS}/{name}/binding", body)
    assert reply.status == 201
    assert (reply.body["kind"], reply.body["status"]) == ("Status", "Success")
    bound = await api.ok("GET", f"{PODS}/{name}")
    assert bound["spec"]["nodeName"] == node
    assert bound["metadata"]["annotations"]["example.com/zone"] == "1"
    (condition,) = (c for c in bound["status"]["conditions"] if c["type"] == "PodScheduled")
    assert condition["status"] == "True"


async def test_a_second_binding_is_a_conflict(api: Client, pods: Any) -> None:
    name = api.name()
    await pods(pod(name))
    await api.ok("POST", f"{PODS}/{name}/binding", binding(name, "a"))
    reply = await api.call("POST", f"{PODS}/{name}/binding", binding(name, "b"))
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    assert reply.body["message"] == (
        f'Operation cannot be fulfilled on pods/binding "{name}": pod {name} is already assigned to node "a"'
    )


async def test_a_binding_of_another_uid_is_a_conflict(api: Client, pods: Any) -> None:
    name = api.name()
    await pods(pod(name))
    reply = await api.call("POST", f"{PODS}/{name}/binding", binding(name, "a", uid="1-2-3"))
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    assert "nodeName" not in (await api.ok("GET", f"{PODS}/{name}"))["spec"]


async def test_a_binding_of_a_missing_pod_is_not_found(api: Client) -> None:
    name = api.name()
    assert (await api.call("POST", f"{PODS}/{name}/binding", binding(name, "a"))).status == 404


async def test_a_binding_without_a_node_is_invalid(api: Client, pods: Any) -> None:
    name = api.name()
    await pods(pod(name))
    body = binding(name, "a") | {"target": {"kind": "Node", "name": ""}}
    assert (await api.call("POST", f"{PODS}/{name}/binding", body)).status == 422


async def test_a_node_name_cannot_be_written_past_the_binding(api: Client, pods: Any) -> None:
    name = api.name()
    await pods(pod(name))
    reply = await api.call("PATCH", f"{PODS}/{name}", {"spec": {"nodeName": "a"}}, MERGE)
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")
    assert "pod updates may not change fields other than" in reply.body["message"]


async def test_labels_of_a_pod_can_be_written(api: Client, pods: Any) -> None:
    name = api.name()
    await pods(pod(name))
    patched = await api.ok("PATCH", f"{PODS}/{name}", {"metadata": {"labels": {"a": "b"}}}, STRATEGIC)
    assert patched["metadata"]["labels"] == {"a": "b"}


async def test_a_pods_status_is_written_on_its_own(api: Client, pods: Any) -> None:
    name = api.name()
    await pods(pod(name))
    failed = {"status": {"phase": "Failed", "reason": "TopologyAffinityError", "message": "no room"}}
    patched = await api.ok("PATCH", f"{PODS}/{name}/status", failed, MERGE)
    assert (patched["status"]["phase"], patched["status"]["reason"]) == ("Failed", "TopologyAffinityError")
    plain = await api.ok("PATCH", f"{PODS}/{name}", {"status": {"phase": "Running"}}, MERGE)
    assert plain["status"]["phase"] == "Failed"


async def test_an_eviction_deletes_the_pod(api: Client, pods: Any) -> None:
    name = api.name()
    made = await pods(pod(name))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    assert (await api.call("POST", f"{PODS}/{name}/eviction", body)).status == 201
    reply = await api.call("GET", f"{PODS}/{name}")
    assert reply.status == 404 or reply.body["metadata"]["uid"] != made["metadata"]["uid"]


async def test_a_node_registers_with_its_status(api: Client) -> None:
    name = api.name()
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "status": {"capacity": {"cpu": "8", "memory": "16777216Ki"}, "allocatable": {"cpu": "7500m"}},
    }
    made = await api.ok("POST", NODES, node)
    assert made["status"]["capacity"] == {"cpu": "8", "memory": "16Gi"}
    assert made["status"]["allocatable"]["cpu"] == "7500m"
    await api.ok("DELETE", f"{NODES}/{name}")
