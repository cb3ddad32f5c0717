"""Lists: their shape, pages that stay consistent, selectors."""

from __future__ import annotations

import pytest

from sandbox.apiserver.client import CONFIGMAPS, NRT, PODS, TABLE, Client, configmap, nrt, pod


async def _several(api: Client, count: int) -> tuple[str, list[str]]:
    """A label value and the names of config maps that have it, in the order of a list."""
    group, names = api.name(), sorted(api.name() for _ in range(count))
    for name in names:
        await api.ok("POST", CONFIGMAPS, configmap(name, labels={"group": group}))
    return group, names


async def test_a_list_carries_its_kind_and_a_resource_version(api: Client) -> None:
    name = api.name()
    created = await api.ok("POST", NRT, nrt(name))
    listed = await api.ok("GET", NRT)
    assert listed["kind"] == "NodeResourceTopologyList"
    assert listed["apiVersion"] == "topology.node.k8s.io/v1alpha2"
    assert int(listed["metadata"]["resourceVersion"]) >= int(created["metadata"]["resourceVersion"])
    assert created in listed["items"]


async def test_items_of_a_builtin_list_carry_no_kind(api: Client) -> None:
    await api.ok("POST", CONFIGMAPS, configmap(api.name()))
    listed = await api.ok("GET", CONFIGMAPS)
    assert listed["kind"] == "ConfigMapList"
    assert all("kind" not in item and "apiVersion" not in item for item in listed["items"])


async def test_pages_show_a_single_revision_whatever_happens_meanwhile(api: Client) -> None:
    group, names = await _several(api, 5)
    first = await api.ok("GET", CONFIGMAPS, labelSelector=f"group={group}", limit=2)
    token = first["metadata"]["continue"]
    await api.ok("DELETE", f"{CONFIGMAPS}/{names[2]}")
    await api.ok("POST", CONFIGMAPS, configmap(f"{names[2]}-late", labels={"group": group}))
    second = await api.ok("GET", CONFIGMAPS, labelSelector=f"group={group}", limit=2, continue_=token)
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    token = second["metadata"]["continue"]
    third = await api.ok("GET", CONFIGMAPS, labelSelector=f"group={group}", limit=2, continue_=token)
    assert not third["metadata"].get("continue")
    listed = [item["metadata"]["name"] for page in (first, second, third) for item in page["items"]]
    assert listed == names


async def test_a_page_without_selectors_says_how_many_remain(api: Client) -> None:
    await _several(api, 3)
    page = await api.ok("GET", CONFIGMAPS, limit=1)
    assert len(page["items"]) == 1
    assert page["metadata"]["remainingItemCount"] >= 2


async def test_a_resource_version_from_the_future_times_out(api: Client) -> None:
    reply = await api.call("GET", CONFIGMAPS, resourceVersion=2**50)
    assert (reply.status, reply.body["reason"]) == (504, "Timeout")
    assert "Too large resource version" in reply.body["message"]
    assert reply.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("tier=a", {"both"}),
        ("tier==a", {"both"}),
        ("tier!=a", {"other", "none"}),
        ("tier in (a,b)", {"both", "other"}),
        ("tier notin (a, b)", {"none"}),
        ("tier", {"both", "other"}),
        ("!tier", {"none"}),
        ("tier,extra=1", {"both"}),
    ],
)
async def test_label_selectors_choose(api: Client, selector: str, chosen: set[str]) -> None:
    group, prefix = api.name(), api.name()
    for role, labels in {
        "both": {"tier": "a", "extra": "1"},
        "other": {"tier": "b"},
        "none": {},
    }.items():
        await api.ok("POST", CONFIGMAPS, configmap(f"{prefix}-{role}", labels={"group": group, **labels}))
    listed = await api.ok("GET", CONFIGMAPS, labelSelector=f"group={group},{selector}")
    assert {item["metadata"]["name"].rpartition("-")[2] for item in listed["items"]} == chosen


async def test_field_selectors_find_pods_by_node(api: Client) -> None:
    name, node = api.name(), api.name()
    body = pod(name)
    body["spec"]["nodeName"] = node
    await api.ok("POST", PODS, body)
    try:
        listed = await api.ok("GET", "/api/v1/pods", fieldSelector=f"spec.nodeName={node}")
        assert [item["metadata"]["name"] for item in listed["items"]] == [name]
        none = await api.ok("GET", "/api/v1/pods", fieldSelector=f"spec.nodeName={node},status.phase!=Pending")
        assert none["items"] == []
    finally:
        await api.ok("DELETE", f"{PODS}/{name}", gracePeriodSeconds=0)


async def test_custom_objects_are_found_by_name(api: Client) -> None:
    name = api.name()
    await api.ok("POST", NRT, nrt(name))
    listed = await api.ok("GET", NRT, fieldSelector=f"metadata.name={name}")
    assert [item["metadata"]["name"] for item in listed["items"]] == [name]


async def test_a_list_over_all_namespaces_has_the_objects_of_each(api: Client) -> None:
    name, label = api.name(), api.name()
    for namespace in ("default", "kube-system"):
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        await api.ok("POST", path, configmap(name, labels={"group": label}))
    listed = await api.ok("GET", "/api/v1/configmaps", labelSelector=f"group={label}")
    assert [item["metadata"]["namespace"] for item in listed["items"]] == ["default", "kube-system"]


async def test_an_answer_can_be_metadata_alone(api: Client) -> None:
    name = api.name()
    await api.ok("POST", NRT, nrt(name))
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    listed = await api.ok("GET", NRT, accept=accept)
    assert listed["kind"] == "PartialObjectMetadataList"
    (item,) = (item for item in listed["items"] if item["metadata"]["name"] == name)
    assert set(item) <= {"kind", "apiVersion", "metadata"}


async def test_a_table_has_the_columns_of_the_definition(api: Client) -> None:
    name = api.name()
    attributes = [{"name": "topologyManagerPolicy", "value": "restricted"}]
    await api.ok("POST", NRT, nrt(name, "5", attributes=attributes))
    table = await api.ok("GET", NRT, accept=TABLE)
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    columns = [column["name"] for column in table["columnDefinitions"]]
    assert columns[0] == "Name"
    (row,) = (row for row in table["rows"] if row["object"]["metadata"]["name"] == name)
    assert row["object"]["kind"] == "PartialObjectMetadata"
    cells = dict(zip(columns, row["cells"], strict=True))
    assert (cells["Name"], cells["Policy"], cells["Free-CPU-0"]) == (name, "restricted", "5")
    assert cells["Scope"] is None
    assert cells["Age"].endswith("s")


async def test_a_column_shows_only_the_first_of_several_results(api: Client) -> None:
    """Why the definition has a column for each zone: `.zones[*].name` shows a single name."""
    name = api.name()
    twice = [{"name": "topologyManagerPolicy", "value": value} for value in ("none", "restricted")]
    await api.ok("POST", NRT, nrt(name, attributes=twice))
    table = await api.ok("GET", f"{NRT}/{name}", accept=TABLE)
    columns = [column["name"] for column in table["columnDefinitions"]]
    assert table["rows"][0]["cells"][columns.index("Policy")] == "none"
