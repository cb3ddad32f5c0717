"""Create, read, update, delete: what a client may rely on, with the errors it must distinguish."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox.apiserver.client import CONFIGMAPS, MERGE, NRT, Client, configmap, nrt


async def test_create_answers_201_with_the_metadata_the_server_gives(api: Client) -> None:
    name = api.name()
    reply = await api.call("POST", NRT, nrt(name))
    assert reply.status == 201
    metadata = reply.body["metadata"]
    assert metadata["name"] == name
    assert metadata["uid"]
    assert metadata["resourceVersion"].isdigit()
    assert metadata["generation"] == 1
    assert metadata["creationTimestamp"].endswith("Z")


async def test_generate_name_makes_a_new_name_each_time(api: Client) -> None:
    prefix = f"{api.name()}-"
    body = configmap("x") | {"metadata": {"generateName": prefix}}
    names = {(await api.ok("POST", CONFIGMAPS, body))["metadata"]["name"] for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith(prefix) and len(name) == len(prefix) + 5 for name in names)


async def test_a_stale_resource_version_is_a_conflict(api: Client) -> None:
    name = api.name()
    first = await api.ok("POST", NRT, nrt(name))
    changed = {**nrt(name, "3"), "metadata": first["metadata"]}
    await api.ok("PUT", f"{NRT}/{name}", changed)
    reply = await api.call("PUT", f"{NRT}/{name}", {**nrt(name, "2"), "metadata": first["metadata"]})
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    assert reply.body["message"] == (
        f'Operation cannot be fulfilled on noderesourcetopologies.topology.node.k8s.io "{name}": the object has been '
        "modified; please apply your changes to the latest version and try again"
    )


async def test_a_builtin_object_can_be_put_without_a_resource_version(api: Client) -> None:
    name = api.name()
    await api.ok("POST", CONFIGMAPS, configmap(name))
    updated = await api.ok("PUT", f"{CONFIGMAPS}/{name}", configmap(name, data={"a": "1"}))
    assert updated["data"] == {"a": "1"}


async def test_a_put_over_another_uid_is_a_conflict(api: Client) -> None:
    name = api.name()
    await api.ok("POST", CONFIGMAPS, configmap(name))
    body = configmap(name)
    body["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    reply = await api.call("PUT", f"{CONFIGMAPS}/{name}", body)
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    uid = (await api.ok("GET", f"{CONFIGMAPS}/{name}"))["metadata"]["uid"]
    assert reply.body["message"] == (
        f'Operation cannot be fulfilled on configmaps "{name}": StorageError: invalid object, Code: 4, Key: '
        f"/registry/configmaps/default/{name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in "
        f"precondition: 00000000-0000-0000-0000-000000000000, UID in object meta: {uid}"
    )


async def test_an_update_that_changes_nothing_keeps_the_resource_version(api: Client) -> None:
    name = api.name()
    first = await api.ok("POST", NRT, nrt(name))
    again = await api.ok("PUT", f"{NRT}/{name}", first)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_the_generation_grows_with_zones_and_not_with_labels(api: Client) -> None:
    name = api.name()
    await api.ok("POST", NRT, nrt(name))
    labelled = await api.ok("PATCH", f"{NRT}/{name}", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    assert labelled["metadata"]["generation"] == 1
    changed = await api.ok("PATCH", f"{NRT}/{name}", {"zones": []}, MERGE)
    assert changed["metadata"]["generation"] == 2


async def test_the_server_keeps_its_own_metadata_fields(api: Client) -> None:
    name = api.name()
    first = await api.ok("POST", NRT, nrt(name))
    patch = {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z", "generation": 99}}
    second = await api.ok("PATCH", f"{NRT}/{name}", patch, MERGE)
    for field in ("creationTimestamp", "generation", "uid"):
        assert second["metadata"][field] == first["metadata"][field]


async def test_delete_of_a_custom_object_answers_a_status_with_its_uid(api: Client) -> None:
    name = api.name()
    created = await api.ok("POST", NRT, nrt(name))
    status = await api.ok("DELETE", f"{NRT}/{name}")
    assert (status["kind"], status["status"]) == ("Status", "Success")
    assert status["details"]["name"] == name
    assert status["details"]["uid"] == created["metadata"]["uid"]
    assert (await api.call("GET", f"{NRT}/{name}")).status == 404


@pytest.mark.parametrize(
    ("field", "word", "fate"),
    [("uid", "UID", "deleted and then recreated"), ("resourceVersion", "ResourceVersion", "modified")],
)
async def test_delete_honours_preconditions(api: Client, field: str, word: str, fate: str) -> None:
    name = api.name()
    created = await api.ok("POST", CONFIGMAPS, configmap(name))
    options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {field: "1"}}
    reply = await api.call("DELETE", f"{CONFIGMAPS}/{name}", options)
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    assert reply.body["message"] == (
        f'Operation cannot be fulfilled on ConfigMap "{name}": the {word} in the precondition (1) does not match the '
        f"{word} in record ({created['metadata'][field]}). The object might have been {fate}"
    )
    options["preconditions"] = {field: created["metadata"][field]}
    await api.ok("DELETE", f"{CONFIGMAPS}/{name}", options)


async def test_a_finalizer_keeps_an_object_until_it_is_removed(api: Client) -> None:
    name = api.name()
    body = configmap(name)
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await api.ok("POST", CONFIGMAPS, body)
    await api.ok("DELETE", f"{CONFIGMAPS}/{name}")
    stored = await api.ok("GET", f"{CONFIGMAPS}/{name}")
    assert stored["metadata"]["deletionTimestamp"]
    await api.ok("PATCH", f"{CONFIGMAPS}/{name}", {"metadata": {"finalizers": None}}, MERGE)
    assert (await api.call("GET", f"{CONFIGMAPS}/{name}")).status == 404


async def test_deletecollection_takes_what_the_selector_chooses(api: Client) -> None:
    group, remaining, gone = api.name(), api.name(), api.name()
    await api.ok("POST", CONFIGMAPS, configmap(remaining, labels={"group": group, "fate": "kept"}))
    await api.ok("POST", CONFIGMAPS, configmap(gone, labels={"group": group, "fate": "gone"}))
    await api.ok("DELETE", CONFIGMAPS, labelSelector=f"group={group},fate=gone")
    left = await api.ok("GET", CONFIGMAPS, labelSelector=f"group={group}")
    assert [item["metadata"]["name"] for item in left["items"]] == [remaining]


async def test_a_dry_run_changes_nothing(api: Client) -> None:
    name = api.name()
    reply = await api.call("POST", NRT, nrt(name), dryRun="All")
    assert reply.status == 201
    assert reply.body["metadata"]["uid"]
    assert (await api.call("GET", f"{NRT}/{name}")).status == 404
    created = await api.ok("POST", NRT, nrt(name))
    tried = await api.ok("PATCH", f"{NRT}/{name}", {"zones": []}, MERGE, dryRun="All")
    assert tried["zones"] == []
    await api.ok("DELETE", f"{NRT}/{name}", dryRun="All")
    assert await api.ok("GET", f"{NRT}/{name}") == created


@pytest.mark.parametrize(
    ("size", "status", "message"),
    [
        (1_400_000, 200, ""),
        (1_600_000, 500, "etcdserver: request is too large"),
        (3_200_000, 413, "Request entity too large: limit is 3145728"),
    ],
)
async def test_an_object_has_to_fit_into_a_request_of_etcd(api: Client, size: int, status: int, message: str) -> None:
    name = api.name()
    await api.ok("POST", NRT, nrt(name))
    patch = {"attributes": [{"name": "a", "value": "x" * size}]}
    reply = await api.call("PATCH", f"{NRT}/{name}", patch, MERGE)
    assert (reply.status, reply.body.get("message", "")) == (status, message)
    await api.ok("DELETE", f"{NRT}/{name}")


async def test_annotations_are_bounded_all_together(api: Client) -> None:
    name = api.name()
    await api.ok("POST", NRT, nrt(name))
    for size, status in ((128 * 1024 - 1, 200), (128 * 1024, 422)):
        patch = {"metadata": {"annotations": dict.fromkeys("ab", "x" * size)}}
        reply = await api.call("PATCH", f"{NRT}/{name}", patch, MERGE)
        assert reply.status == status
    cause = reply.body["details"]["causes"][0]
    assert (cause["reason"], cause["field"]) == ("FieldValueTooLong", "metadata.annotations")


async def test_a_body_that_is_no_json_is_a_bad_request(api: Client) -> None:
    async with api.session.post(api.url + CONFIGMAPS, data=b"{", headers={"Content-Type": "application/json"}) as reply:
        assert reply.status == 400
        assert (await reply.json())["reason"] == "BadRequest"
