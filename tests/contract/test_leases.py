"""Leases, as leader election uses them, and the only format of time that they accept."""

from __future__ import annotations

import pytest

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


async def test_what_is_null_or_unknown_is_not_kept(api: Client) -> None:
    spec = {"acquireTime": None, "strategy": "OldestEmulationVersion", "preferredHolder": "b", "colour": "red"}
    reply = await api.call("POST", LEASES, lease(api.name(), **spec))
    assert reply.status == 201
    assert set(reply.body["spec"]) == {"holderIdentity", "leaseDurationSeconds", "renewTime", "leaseTransitions"}
    # The two that are known belong to a feature that is off.
    assert reply.headers.getall("Warning") == ['299 - "unknown field \\"spec.colour\\""']


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.000000Z"),
        ("2026-01-01T02:00:00.123456+02:00", "2026-01-01T00:00:00.123456Z"),
        ("2026-01-01T00:00:00.100000+00:00", "2026-01-01T00:00:00.100000Z"),
    ],
)
async def test_a_time_is_read_in_utc(api: Client, written: str, read: str) -> None:
    created = await api.ok("POST", LEASES, lease(api.name(), renewTime=written))
    assert created["spec"]["renewTime"] == read


@pytest.mark.parametrize(
    "written",
    [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00+00:00",
        "2026-01-01T00:00:00.123Z",
        "2026-01-01T00:00:00.1234567Z",
        "2026-01-01 00:00:00.123456Z",
        "2026-01-01T00:00:00.123456",
        "",
        "2026-13-01T00:00:00.123456Z",
    ],
)
async def test_a_time_has_exactly_six_digits_after_the_point(api: Client, written: str) -> None:
    reply = await api.call("POST", LEASES, lease(api.name(), renewTime=written))
    assert (reply.status, reply.body["reason"]) == (400, "BadRequest")
    text = f'Lease in version "v1" cannot be handled as a Lease: parsing time "{written}"'
    assert reply.body["message"].startswith(text)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("renewTime", 5, "string"),
        ("holderIdentity", 5, "string"),
        ("leaseDurationSeconds", "15", "int32"),
        ("leaseDurationSeconds", 1.5, "int32"),
    ],
)
async def test_a_value_of_another_type_is_a_bad_request(api: Client, field: str, value: object, expected: str) -> None:
    reply = await api.call("POST", LEASES, lease(api.name(), **{field: value}))
    assert (reply.status, reply.body["reason"]) == (400, "BadRequest")
    assert reply.body["message"].endswith(f" into Go struct field LeaseSpec.spec.{field} of type {expected}")


@pytest.mark.parametrize(("field", "value"), [("leaseDurationSeconds", 0), ("leaseTransitions", -1)])
async def test_a_number_out_of_its_range_is_invalid(api: Client, field: str, value: int) -> None:
    reply = await api.call("POST", LEASES, lease(api.name(), **{field: value}))
    assert (reply.status, reply.body["reason"]) == (422, "Invalid")
    (cause,) = reply.body["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldValueInvalid", f"spec.{field}")
