"""Pods and nodes as a scheduler meets them: defaults, binding, eviction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandbox.apiserver.client import MERGE, NODES, PODS, STRATEGIC, Client, binding, pod
from sandbox.apiserver.errors import Json


@pytest.fixture
async def pods(api: Client) -> AsyncIterator[Any]:
    """Creates pods, and takes them away at once afterwards (a real server would wait for a kubelet)."""
    created: list[str] = []

    async def create(body: Json) -> Json:
        document = await api.ok("POST", PODS, body)
        created.append(document["metadata"]["name"])
        return document

    yield create
    for name in created:
        await api.call("DELETE", f"{PODS}/{name}", gracePeriodSeconds=0)


async def test_a_new_pod_is_pending_and_waits_for_the_default_scheduler(api: Client, pods: Any) -> None:
    created = await pods(pod(api.name()))
    assert created["status"]["phase"] == "Pending"
    assert created["spec"]["schedulerName"] == "default-scheduler"
    assert created["spec"]["restartPolicy"] == "Always"
    assert created["spec"]["priority"] == 0
    assert "nodeName" not in created["spec"]
    keys = {toleration["key"] for toleration in created["spec"]["tolerations"]}
    assert keys == {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


async def test_requests_default_from_limits_resource_by_resource(api: Client, pods: Any) -> None:
    body = pod(api.name(), limits={"cpu": "2", "memory": "1Gi"}, requests={"cpu": "1"})
    created = await pods(body)
    assert created["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "2", "memory": "1Gi"},
        "requests": {"cpu": "1", "memory": "1Gi"},
    }


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


async def test_a_binding_takes_a_nomination_back(api: Client, pods: Any) -> None:
    name = api.name()
    await pods(pod(name))
    await api.ok("PATCH", f"{PODS}/{name}/status", {"status": {"nominatedNodeName": "b"}}, MERGE)
    await api.ok("POST", f"{PODS}/{name}/binding", binding(name, "a"))
    assert "nominatedNodeName" not in (await api.ok("GET", f"{PODS}/{name}"))["status"]


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


async def test_a_binding_of_an_older_version_is_a_conflict(api: Client, pods: Any) -> None:
    name = api.name()
    created = await pods(pod(name))
    await api.ok("PATCH", f"{PODS}/{name}", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    body = binding(name, "a", resourceVersion=created["metadata"]["resourceVersion"])
    reply = await api.call("POST", f"{PODS}/{name}/binding", body)
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    assert reply.body["details"]["kind"] == "pods"
    assert "Precondition failed: ResourceVersion in precondition" in reply.body["message"]


async def test_a_gated_pod_says_so_and_is_not_bound(api: Client, pods: Any) -> None:
    body = pod(api.name())
    body["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    created = await pods(body)
    (condition,) = created["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "SchedulingGated")
    name = created["metadata"]["name"]
    assert (await api.call("POST", f"{PODS}/{name}/binding", binding(name, "a"))).status == 409


async def bound(api: Client, pods: Any, **metadata: Any) -> str:
    """The name of a pod on a node."""
    body = pod(api.name())
    body["metadata"] |= metadata
    body["spec"]["nodeName"] = "a"
    created = await pods(body)
    name: str = created["metadata"]["name"]
    return name


async def test_a_deleted_pod_stays_on_its_node_until_the_kubelet_is_done(api: Client, pods: Any) -> None:
    name = await bound(api, pods)
    shown = await api.ok("DELETE", f"{PODS}/{name}")
    stored = await api.ok("GET", f"{PODS}/{name}")
    assert shown == stored
    assert stored["metadata"]["deletionTimestamp"] > stored["metadata"]["creationTimestamp"]
    assert (stored["metadata"]["deletionGracePeriodSeconds"], stored["metadata"]["generation"]) == (30, 2)
    status = {"status": {"phase": "Failed"}}
    await api.ok("PATCH", f"{PODS}/{name}/status", status, MERGE)
    assert (await api.call("GET", f"{PODS}/{name}")).status == 200
    reply = await api.call("POST", f"{PODS}/{name}/binding", binding(name, "b"))
    assert reply.body["message"].endswith(f"pod {name} is being deleted, cannot be assigned to a host")
    await api.ok("DELETE", f"{PODS}/{name}", {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
    assert (await api.call("GET", f"{PODS}/{name}")).status == 404


async def test_the_time_left_to_a_pod_only_gets_shorter(api: Client, pods: Any) -> None:
    name = await bound(api, pods)
    first = await api.ok("DELETE", f"{PODS}/{name}", gracePeriodSeconds=20)
    assert await api.ok("DELETE", f"{PODS}/{name}", gracePeriodSeconds=60) == first
    assert await api.ok("DELETE", f"{PODS}/{name}") == first
    shorter = await api.ok("DELETE", f"{PODS}/{name}", gracePeriodSeconds=1)
    assert (shorter["metadata"]["deletionGracePeriodSeconds"], shorter["metadata"]["generation"]) == (1, 2)


async def test_a_pod_that_is_not_bound_or_has_ended_is_deleted_at_once(api: Client, pods: Any) -> None:
    waiting = (await pods(pod(api.name())))["metadata"]["name"]
    ended = await bound(api, pods)
    await api.ok("PATCH", f"{PODS}/{ended}/status", {"status": {"phase": "Succeeded"}}, MERGE)
    for name in (waiting, ended):
        last = await api.ok("DELETE", f"{PODS}/{name}")
        assert last["metadata"]["deletionGracePeriodSeconds"] == 0
        assert (await api.call("GET", f"{PODS}/{name}")).status == 404


async def test_a_finalizer_outlasts_the_grace_of_a_pod(api: Client, pods: Any) -> None:
    name = await bound(api, pods, finalizers=["example.com/hold"])
    await api.ok("DELETE", f"{PODS}/{name}")
    await api.ok("DELETE", f"{PODS}/{name}", gracePeriodSeconds=0)
    assert (await api.ok("GET", f"{PODS}/{name}"))["metadata"]["deletionGracePeriodSeconds"] == 0
    await api.ok("PATCH", f"{PODS}/{name}", {"metadata": {"finalizers": None}}, MERGE)
    assert (await api.call("GET", f"{PODS}/{name}")).status == 404


async def test_every_deleted_pod_is_seen_terminating_before_it_is_gone(api: Client, pods: Any) -> None:
    created = await pods(pod(api.name()))
    name = created["metadata"]["name"]
    async with api.watch(PODS, resourceVersion=created["metadata"]["resourceVersion"]) as watch:
        await api.ok("DELETE", f"{PODS}/{name}")
        seen = [await watch.about(name), await watch.about(name)]
    assert [kind for kind, _ in seen] == ["MODIFIED", "DELETED"]
    assert all(last["metadata"]["deletionTimestamp"] for _, last in seen)


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
    created = await pods(pod(name))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    assert (await api.call("POST", f"{PODS}/{name}/eviction", body)).status == 201
    reply = await api.call("GET", f"{PODS}/{name}")
    assert reply.status == 404 or reply.body["metadata"]["uid"] != created["metadata"]["uid"]


async def test_an_eviction_leaves_a_pod_on_a_node_its_grace(api: Client, pods: Any) -> None:
    name = await bound(api, pods)
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    assert (await api.call("POST", f"{PODS}/{name}/eviction", body)).status == 201
    assert (await api.ok("GET", f"{PODS}/{name}"))["metadata"]["deletionGracePeriodSeconds"] == 30


async def test_a_node_registers_with_its_status(api: Client) -> None:
    name = api.name()
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"zone": "a"}},
        "status": {"capacity": {"cpu": "8", "memory": "16Gi"}, "allocatable": {"cpu": "7500m"}},
    }
    created = await api.ok("POST", NODES, node)
    assert created["status"]["capacity"] == {"cpu": "8", "memory": "16Gi"}
    assert created["status"]["allocatable"]["cpu"] == "7500m"
    await api.ok("DELETE", f"{NODES}/{name}")
