"""The official client, the asynchronous half topowise uses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes import aio

from sandbox.apiserver.client import NRT, PODS, Client, nrt, pod
from sandbox.apiserver.errors import Json

# The product only reads kubeconfigs with it; its models alone take 1.4 s of CPU to import.
pytestmark = pytest.mark.nightly

GROUP = ("topology.node.k8s.io", "v1alpha2", "noderesourcetopologies")


@pytest.fixture
async def library(cluster: Any, api: Client, tmp_path: Any) -> AsyncIterator[Any]:
    configuration = aio.client.Configuration(host=cluster.url)
    configuration.verify_ssl = False
    if cluster.token:
        configuration.api_key = {"authorization": f"Bearer {cluster.token}"}
    async with aio.client.ApiClient(configuration) as client:
        yield client


async def test_custom_objects_are_listed_and_applied(api: Client, library: Any) -> None:
    name = api.name()
    objects = aio.client.CustomObjectsApi(library)
    reply = await objects.patch_cluster_custom_object_without_preload_content(
        *GROUP, name, nrt(name), field_manager="test", force=True, _content_type="application/apply-patch+yaml"
    )
    assert reply.status == 201
    reply.release()
    listed = await objects.list_cluster_custom_object(*GROUP)
    assert name in {item["metadata"]["name"] for item in listed["items"]}


async def test_a_raw_watch_streams_lines(api: Client, library: Any) -> None:
    name = api.name()
    created = await api.ok("POST", NRT, nrt(name))
    objects = aio.client.CustomObjectsApi(library)
    reply = await objects.list_cluster_custom_object_without_preload_content(
        *GROUP,
        watch=True,
        resource_version=created["metadata"]["resourceVersion"],
        timeout_seconds=1,
        allow_watch_bookmarks=True,
        _request_timeout=10.0,
    )
    await api.ok("DELETE", f"{NRT}/{name}")
    lines = [json.loads(line) async for line in reply.content]
    own_lines = [line for line in lines if line["object"]["metadata"].get("name") == name]
    assert [line["type"] for line in own_lines] == ["DELETED"]


async def test_typed_pods_are_read(api: Client, library: Any) -> None:
    name = api.name()
    await api.ok("POST", PODS, pod(name, limits={"cpu": "1", "memory": "1Gi"}))
    core = aio.client.CoreV1Api(library)
    read = await core.read_namespaced_pod(name, "default")
    assert read.status.qos_class == "Guaranteed"
    listed = await core.list_pod_for_all_namespaces(field_selector=f"metadata.name={name}")
    assert [item.metadata.name for item in listed.items] == [name]
    await core.delete_namespaced_pod(name, "default", grace_period_seconds=0)


def lease(name: str, renewed: str) -> Json:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": renewed},
    }


async def test_the_library_cannot_renew_a_lease_at_a_full_second(api: Client, library: Any) -> None:
    """It leaves the microseconds out when there are none, and a MicroTime without them is refused."""
    leases = aio.client.CoordinationV1Api(library)
    body = lease(api.name(), "2026-01-01T00:00:00.000000Z")
    reply = await leases.create_namespaced_lease_without_preload_content("default", body)
    assert (reply.status, (await reply.json())["reason"]) == (400, "BadRequest")


async def test_leases_are_created_and_replaced(api: Client, library: Any) -> None:
    name = api.name()
    leases = aio.client.CoordinationV1Api(library)
    body = lease(name, "2026-01-01T00:00:00.000001Z")
    reply = await leases.create_namespaced_lease_without_preload_content("default", body)
    assert reply.status == 201
    lease_object = json.loads(await reply.read())
    # The library sends the time as +00:00, the server normalizes times.
    assert lease_object["spec"]["renewTime"] == "2026-01-01T00:00:00.000001Z"
    lease_object["spec"]["holderIdentity"] = "b"
    reply = await leases.replace_namespaced_lease_without_preload_content(name, "default", lease_object)
    assert (await reply.json())["spec"]["holderIdentity"] == "b"
    reply = await leases.replace_namespaced_lease_without_preload_content(name, "default", lease_object)
    assert reply.status == 409
