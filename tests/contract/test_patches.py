"""The four kinds of patch, and who owns a field after each."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.apiserver.client import (
    APPLY,
    CONFIGMAPS,
    MERGE,
    NODES,
    NRT,
    STRATEGIC,
    Client,
    configmap,
    nrt,
)
from sandbox.apiserver.errors import Json


def managers(obj: Json) -> dict[str, Json]:
    """Owned fields by manager."""
    return {entry["manager"]: entry["fieldsV1"] for entry in obj["metadata"]["managedFields"]}


async def test_a_merge_patch_replaces_lists_and_deletes_by_null(api: Client) -> None:
    name = api.name()
    await api.ok("POST", NRT, nrt(name, attributes=[{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]))
    patch = {"metadata": {"annotations": {"x": "1", "y": "2"}}, "attributes": [{"name": "c", "value": "3"}]}
    await api.ok("PATCH", f"{NRT}/{name}", patch, MERGE)
    patch = {"metadata": {"annotations": {"x": None}}}
    patched = await api.ok("PATCH", f"{NRT}/{name}", patch, MERGE)
    assert patched["attributes"] == [{"name": "c", "value": "3"}]
    assert patched["metadata"]["annotations"] == {"y": "2"}


async def test_a_strategic_merge_patch_joins_lists_by_key(api: Client) -> None:
    name = api.name()
    await api.ok("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    conditions = [{"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": "False"}]
    await api.ok("PATCH", f"{NODES}/{name}/status", {"status": {"conditions": conditions}}, STRATEGIC)
    first = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    patched = await api.ok("PATCH", f"{NODES}/{name}/status", first, STRATEGIC)
    states = {condition["type"]: condition["status"] for condition in patched["status"]["conditions"]}
    assert states == {"Ready": "False", "MemoryPressure": "False"}
    gone = {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}
    patched = await api.ok("PATCH", f"{NODES}/{name}/status", gone, STRATEGIC)
    assert [condition["type"] for condition in patched["status"]["conditions"]] == ["MemoryPressure"]


async def test_a_patch_may_insist_on_a_resource_version(api: Client) -> None:
    name = api.name()
    created = await api.ok("POST", NRT, nrt(name))
    version = created["metadata"]["resourceVersion"]
    await api.ok("PATCH", f"{NRT}/{name}", {"metadata": {"resourceVersion": version, "labels": {"a": "1"}}}, MERGE)
    late = {"metadata": {"resourceVersion": version, "labels": {"a": "2"}}}
    reply = await api.call("PATCH", f"{NRT}/{name}", late, MERGE)
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")


async def test_apply_creates_then_keeps_the_resource_version_while_nothing_changes(api: Client) -> None:
    name = api.name()
    reply = await api.apply(f"{NRT}/{name}", nrt(name), "exporter")
    assert reply.status == 201
    again = await api.apply(f"{NRT}/{name}", nrt(name), "exporter")
    assert again.status == 200
    assert again.body == reply.body
    changed = await api.apply(f"{NRT}/{name}", nrt(name, "3"), "exporter")
    assert changed.body["metadata"]["resourceVersion"] != reply.body["metadata"]["resourceVersion"]
    assert changed.body["metadata"]["generation"] == 2


async def test_apply_owns_all_zones_as_a_single_field(api: Client) -> None:
    name = api.name()
    reply = await api.apply(f"{NRT}/{name}", nrt(name), "exporter")
    (entry,) = reply.body["metadata"]["managedFields"]
    assert entry["manager"] == "exporter"
    assert entry["operation"] == "Apply"
    assert entry["apiVersion"] == "topology.node.k8s.io/v1alpha2"
    assert entry["fieldsType"] == "FieldsV1"
    assert entry["fieldsV1"] == {"f:zones": {}}


async def test_another_manager_conflicts_on_zones_unless_it_forces(api: Client) -> None:
    name = api.name()
    await api.apply(f"{NRT}/{name}", nrt(name), "first")
    reply = await api.apply(f"{NRT}/{name}", nrt(name, "1"), "second")
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    assert reply.body["message"] == 'Apply failed with 1 conflict: conflict with "first": .zones'
    (cause,) = reply.body["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".zones")
    forced = await api.apply(f"{NRT}/{name}", nrt(name, "1"), "second", force="true")
    assert forced.status == 200
    assert set(managers(forced.body)) == {"second"}


async def test_two_managers_share_a_field_of_the_same_value(api: Client) -> None:
    name = api.name()
    await api.apply(f"{NRT}/{name}", nrt(name), "first")
    reply = await api.apply(f"{NRT}/{name}", nrt(name), "second")
    assert reply.status == 200
    assert set(managers(reply.body)) == {"first", "second"}


async def test_apply_removes_what_its_manager_no_longer_declares(api: Client) -> None:
    name = api.name()
    config = configmap(name, data={"a": "1", "b": "2"})
    await api.apply(f"{CONFIGMAPS}/{name}", config, "first")
    await api.apply(f"{CONFIGMAPS}/{name}", configmap(name, data={"b": "2", "c": "3"}), "second")
    reply = await api.apply(f"{CONFIGMAPS}/{name}", configmap(name, data={"a": "1"}), "first")
    assert reply.body["data"] == {"a": "1", "b": "2", "c": "3"}
    reply = await api.apply(f"{CONFIGMAPS}/{name}", configmap(name, data={"b": "2"}), "second")
    assert reply.body["data"] == {"a": "1", "b": "2"}


async def test_a_plain_write_takes_the_field_it_changes(api: Client) -> None:
    name = api.name()
    await api.apply(f"{CONFIGMAPS}/{name}", configmap(name, data={"a": "1", "b": "2"}), "first")
    patched = await api.ok("PATCH", f"{CONFIGMAPS}/{name}", {"data": {"a": "9"}}, MERGE, fieldManager="editor")
    owned = managers(patched)
    assert owned["first"] == {"f:data": {"f:b": {}}}
    assert owned["editor"] == {"f:data": {"f:a": {}}}
    reply = await api.apply(f"{CONFIGMAPS}/{name}", configmap(name, data={"a": "1", "b": "2"}), "first")
    assert reply.status == 409
    assert 'conflict with "editor" using v1' in reply.body["message"]
    assert reply.body["message"].endswith(": .data.a")


async def test_apply_owns_elements_of_keyed_lists(api: Client) -> None:
    name = api.name()

    def owned_by(uid: str) -> Json:
        owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": uid}
        return {**nrt(name), "metadata": {"name": name, "ownerReferences": [owner]}}

    await api.apply(f"{NRT}/{name}", owned_by("1"), "first")
    body = owned_by("2")
    reply = await api.apply(f"{NRT}/{name}", body, "second")
    assert reply.status == 200
    assert [owner["uid"] for owner in reply.body["metadata"]["ownerReferences"]] == ["1", "2"]
    fields: Any = managers(reply.body)["second"]["f:metadata"]["f:ownerReferences"]
    assert 'k:{"uid":"2"}' in fields


async def test_apply_needs_a_field_manager(api: Client) -> None:
    name = api.name()
    reply = await api.call("PATCH", f"{NRT}/{name}", nrt(name), APPLY)
    assert reply.status in (400, 422)
    assert "fieldManager" in reply.body["message"]


async def test_one_empty_entry_clears_all_ownership(api: Client) -> None:
    name = api.name()
    await api.apply(f"{NRT}/{name}", nrt(name), "first")
    cleared = await api.ok("PATCH", f"{NRT}/{name}", {"metadata": {"managedFields": [{}]}}, MERGE)
    assert not cleared["metadata"].get("managedFields")


@pytest.mark.parametrize("content", [MERGE, STRATEGIC])
async def test_status_and_spec_are_written_apart(api: Client, content: str) -> None:
    name = api.name()
    await api.ok("POST", NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    both = {"spec": {"unschedulable": True}, "status": {"capacity": {"cpu": "8"}}}
    plain = await api.ok("PATCH", f"{NODES}/{name}", both, content)
    assert plain["spec"]["unschedulable"] is True
    assert "cpu" not in plain.get("status", {}).get("capacity", {})
    both = {"spec": {"unschedulable": None}, "status": {"capacity": {"cpu": "8"}}}
    status = await api.ok("PATCH", f"{NODES}/{name}/status", both, content)
    assert status["spec"]["unschedulable"] is True
    assert status["status"]["capacity"] == {"cpu": "8"}
