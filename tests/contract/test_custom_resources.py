"""Custom resources: served once defined, with the fields that they know, shown in every served version."""

from __future__ import annotations

import asyncio

from sandbox.apiserver.client import CRDS, MERGE, NRT, NRT_V1ALPHA1, Client, nrt
from sandbox.apiserver.errors import Json


def definition(group: str) -> Json:
    """A namespaced kind with a status subresource."""
    spec = {"type": "object", "properties": {"size": {"type": "integer"}}}
    status = {"type": "object", "properties": {"phase": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"gadgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


async def until(api: Client, path: str, status: int) -> None:
    for _ in range(200):
        if (await api.call("GET", path)).status == status:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} does not answer {status}")


async def until_established(api: Client, path: str) -> None:
    """A real server serves the kind before its definition says so."""
    for _ in range(200):
        conditions = (await api.ok("GET", path))["status"]["conditions"]
        if {condition["type"]: condition["status"] for condition in conditions}.get("Established") == "True":
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} is not established: {conditions}")


async def test_a_definition_makes_its_kind_served_until_it_is_deleted(api: Client) -> None:
    group = f"{api.name()}.example.com"
    path = f"/apis/{group}/v1/namespaces/default/gadgets"
    assert (await api.call("GET", path)).status == 404
    await api.ok("POST", CRDS, definition(group))
    await until(api, path, 200)
    await until_established(api, f"{CRDS}/gadgets.{group}")
    gadget = {"apiVersion": f"{group}/v1", "kind": "Gadget", "metadata": {"name": "g"}, "spec": {"size": 3}}
    created = await api.ok("POST", path, gadget | {"status": {"phase": "early"}})
    assert created["spec"] == {"size": 3}
    assert "status" not in created
    patched = await api.ok("PATCH", f"{path}/g/status", {"status": {"phase": "on"}, "spec": {"size": 9}}, MERGE)
    assert (patched["status"], patched["spec"]) == ({"phase": "on"}, {"size": 3})
    assert patched["metadata"]["generation"] == 1
    async with api.watch(path, resourceVersion=patched["metadata"]["resourceVersion"]) as watch:
        await api.ok("DELETE", f"{CRDS}/gadgets.{group}")
        # Its objects go first, each with an event.
        assert (await watch.about("g"))[0] == "DELETED"
    await until(api, path, 404)
    assert (await api.call("GET", path)).text == "404 page not found\n"


async def test_a_definition_is_discovered(api: Client) -> None:
    discovered = await api.ok("GET", "/apis/topology.node.k8s.io/v1alpha2")
    assert (discovered["kind"], discovered["groupVersion"]) == ("APIResourceList", "topology.node.k8s.io/v1alpha2")
    (entry,) = discovered["resources"]
    assert (entry["name"], entry["kind"], entry["namespaced"]) == (
        "noderesourcetopologies",
        "NodeResourceTopology",
        False,
    )
    assert entry["shortNames"] == ["node-res-topo"]
    assert {"get", "list", "watch", "create", "patch", "update", "delete"} <= set(entry["verbs"])
    groups = (await api.ok("GET", "/apis"))["groups"]
    (group,) = (group for group in groups if group["name"] == "topology.node.k8s.io")
    assert {version["version"] for version in group["versions"]} == {"v1alpha1", "v1alpha2"}
    assert group["preferredVersion"]["version"] == "v1alpha2"


async def test_every_served_version_shows_the_same_object(api: Client) -> None:
    name = api.name()
    old = nrt(name) | {"apiVersion": "topology.node.k8s.io/v1alpha1", "topologyPolicies": ["None"]}
    created = await api.ok("POST", NRT_V1ALPHA1, old)
    assert created["apiVersion"] == "topology.node.k8s.io/v1alpha1"
    seen = await api.ok("GET", f"{NRT}/{name}")
    assert seen["apiVersion"] == "topology.node.k8s.io/v1alpha2"
    assert seen["metadata"]["uid"] == created["metadata"]["uid"]
    assert seen["zones"] == created["zones"]


async def test_an_old_version_does_not_show_what_it_does_not_know(api: Client) -> None:
    name = api.name()
    await api.ok("POST", NRT, nrt(name, attributes=[{"name": "a", "value": "b"}]))
    seen = await api.ok("GET", f"{NRT_V1ALPHA1}/{name}")
    assert "attributes" not in seen
    assert (await api.ok("GET", f"{NRT}/{name}"))["attributes"]


async def test_unknown_fields_are_dropped(api: Client) -> None:
    assert "colour" not in await api.ok("POST", NRT, nrt(api.name(), colour="red"))


async def test_a_kind_without_a_status_subresource_has_none(api: Client) -> None:
    name = api.name()
    await api.ok("POST", NRT, nrt(name))
    assert (await api.call("PATCH", f"{NRT}/{name}/status", {}, MERGE)).status == 404
