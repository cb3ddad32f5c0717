"""Leases, as leader election uses them."""

from __future__ import annotations

from sandbox.apiserver.client import LEASES, Client, lease


async def test_a_lease_is_created_by_put_and_then_guarded_by_its_resource_version(api: Client) -> None:
    name = api.name()
    reply = await api.call("PUT", f"{LEASES}/{name}", lease(name))
    assert reply.status == 201
    stored = reply.body
    stored["spec"]["holderIdentity"] = "b"
    assert (await api.call("PUT", f"{LEASES}/{name}", stored)).status == 200
    # The first holder renews with what it knew.
    stored["spec"]["holderIdentity"] = "a"
    assert (await api.call("PUT", f"{LEASES}/{name}", stored)).status == 409


async def test_a_lease_that_was_deleted_comes_back_by_the_renewal_of_its_holder(api: Client) -> None:
    name = api.name()
    stored = await api.ok("POST", LEASES, lease(name))
    del stored["metadata"]["uid"]
    await api.ok("DELETE", f"{LEASES}/{name}")
    reply = await api.call("PUT", f"{LEASES}/{name}", stored)
    assert reply.status == 201
    assert reply.body["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]


async def test_a_renewal_of_a_deleted_lease_that_names_its_uid_is_a_conflict(api: Client) -> None:
    name = api.name()
    stored = await api.ok("POST", LEASES, lease(name))
    await api.ok("DELETE", f"{LEASES}/{name}")
    reply = await api.call("PUT", f"{LEASES}/{name}", stored)
    assert (reply.status, reply.body["reason"]) == (409, "Conflict")
    assert reply.body["message"].endswith(f"UID in precondition: {stored['metadata']['uid']}, UID in object meta: ")


async def test_a_lease_is_released_by_an_empty_holder(api: Client) -> None:
    name = api.name()
    stored = await api.ok("POST", LEASES, lease(name))
    stored["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
    released = await api.ok("PUT", f"{LEASES}/{name}", stored)
    assert (released["spec"]["holderIdentity"], released["spec"]["leaseDurationSeconds"]) == ("", 1)
