"""Devices and claims in the ledger: which devices are allocated, by statuses and by predictions."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from claim_objects import DRIVER, claim, device_slice, new_claims, sized_claim, sized_slice
from topowise.pods import Needs
from topowise_scheduler.options.claims.ledger import Claims
from topowise_scheduler.options.claims.objects import DeviceID
from topowise_scheduler.verdicts.kube_scheduler import Node

NODE = Node("n1")


@pytest.fixture
def claims() -> Claims:
    claims = new_claims()
    claims.put_slice(sized_slice(device_slice("n1", (0, 0, 1, 1))))
    return claims


class Pod(NamedTuple):
    """A pod with claims."""

    uid: str
    namespace: str
    claims: tuple[str, ...]
    needs: Needs | None = None


def claiming_pod(uid: str, *names: str) -> Pod:
    return Pod(uid, "default", names)


def devices(claims: Claims, *names: str, uid: str = "uid-p") -> list[str]:
    found = claims.devices(claiming_pod(uid, *names), NODE, "n1")
    assert not found.problem, found.problem
    return [device.id.device for device in found.devices]


def test_admin_access_takes_no_device(claims: Claims) -> None:
    claims.put_claim(sized_claim(claim("monitor", 1, ["gpu-0"], adminAccess=True)))
    claims.put_claim(sized_claim(claim("new")))
    assert devices(claims, "new") == ["gpu-0"]
    assert claims.devices(claiming_pod("u", *["monitor"]), NODE, "n1").devices == ()


def test_an_older_version_of_a_claim_changes_nothing(claims: Claims) -> None:
    """A bind has read the claim; the watch brings the version before."""
    claims.put_claim(sized_claim(claim("p", 1, ["gpu-3"], version=7)))
    claims.put_claim(sized_claim(claim("p", version=6)))
    assert devices(claims, "p") == ["gpu-3"]


def test_an_assumed_allocation_ends_with_the_status_of_the_claim(claims: Claims) -> None:
    for name in ("first", "second"):
        claims.put_claim(sized_claim(claim(name)))
    found = claims.devices(claiming_pod("uid-1", *["first"]), NODE, "n1")
    claims.assume("uid-1", "n1", found.allocations)
    assert devices(claims, "second", uid="uid-2") == ["gpu-1"]
    # The pod itself still gets the devices that are assumed for it.
    assert devices(claims, "first", uid="uid-1") == ["gpu-0"]
    claims.put_claim(sized_claim(claim("first", 1, ["gpu-2"], version=2)))
    assert devices(claims, "second", uid="uid-2") == ["gpu-0"]
    assert not claims.assumed()


def test_a_device_that_two_claims_have_is_free_only_after_both(claims: Claims) -> None:
    """The status of one claim names the device that is expected for another claim."""
    for name in ("first", "second", "third"):
        claims.put_claim(sized_claim(claim(name)))
    claims.assume("uid-1", "n1", claims.devices(claiming_pod("uid-1", *["first"]), NODE, "n1").allocations)
    claims.put_claim(sized_claim(claim("second", 1, ["gpu-0"], version=2)))
    claims.forget("uid-1")
    assert devices(claims, "third", uid="uid-3") == ["gpu-1"]


def test_changes_name_the_nodes_whose_devices_they_concern(claims: Claims) -> None:
    seen: list[tuple[str, bool]] = []
    claims.put_slice(sized_slice(device_slice("n2", (0,))))
    claims.changed = lambda node, is_better: seen.append((node, is_better))
    claims.put_claim(sized_claim(claim("a")))
    assert not seen
    claims.put_claim(sized_claim(claim("a", 1, ["gpu-0"], node="n2", version=2)))
    assert seen == [("n2", False)]
    claims.drop_claim("default/a")
    assert seen[1:] == [("n2", True)]


def test_objects_beyond_the_bound_make_predictions_unknown() -> None:
    raw = sized_slice(device_slice("n1", (0, 1)))
    claims = new_claims(most_bytes=raw.size + 500)
    claims.put_slice(raw)
    claims.put_claim(sized_claim(claim("p")))
    assert devices(claims, "p") == ["gpu-0"]
    claims.put_slice(sized_slice(device_slice("n2", (0, 1))))
    assert "more than the" in claims.devices(claiming_pod("u", *["p"]), NODE, "n1").problem
    claims.drop_slice(f"n2-{DRIVER}")
    assert devices(claims, "p") == ["gpu-0"]
    claims.drop_claim("default/p")
    claims.drop_slice(f"n1-{DRIVER}")
    claims.drop_class("gpu")
    assert claims.bytes == 0


def test_large_claims_of_a_namespace_leave_other_namespaces_their_predictions(claims: Claims) -> None:
    """260 claims of 1 MiB: an owner, annotations or selectors that are as long as the API server takes them."""
    claims.put_claim(sized_claim(claim("p")))
    for number in range(260):
        hostile = claim(f"hostile-{number}", devices=["gpu-3"] if number == 7 else None)
        hostile["metadata"]["namespace"] = "hostile"
        text = f"{number} == 0 || " + "true || " * 1200
        selectors = [{"cel": {"expression": f"{text}{at} == 0"}} for at in range(100)]
        if number % 2:
            hostile["metadata"]["annotations"] = {"a": "z" * (1 << 20)}
        else:
            hostile["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = selectors
        claims.put_claim(sized_claim(hostile))
    assert devices(claims, "p") == ["gpu-0"]
    assert claims.bytes < 6 << 20
    # The allocation of each claim counts.
    claims.put_claim(sized_claim(claim("all", 4)))
    assert "3 of 4 devices" in claims.devices(claiming_pod("u", "all"), NODE, "n1").problem
    left_out = claims.devices(Pod("u", "hostile", ("hostile-259",)), NODE, "n1").problem
    assert "spec beyond the 4 MiB that are kept of a namespace" in left_out
    for number in range(260):
        claims.drop_claim(f"hostile/hostile-{number}")
    assert devices(claims, "all") == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]


def test_large_slices_of_a_node_leave_other_nodes_their_predictions(claims: Claims) -> None:
    claims.put_claim(sized_claim(claim("p")))
    for number in range(260):
        large = device_slice("n2", (0,), name=f"large-{number}")
        large["spec"]["devices"][0]["attributes"]["text"] = {"string": "z" * (1 << 20)}
        claims.put_slice(sized_slice(large))
    assert devices(claims, "p") == ["gpu-0"]
    assert "of the node take more" in claims.devices(claiming_pod("u", "p"), Node("n2"), "n2").problem
    claims.put_slice(sized_slice(device_slice("n2", (0,), name="large-9")))
    for number in range(260):
        claims.drop_slice(f"large-{number}")
    claims.put_slice(sized_slice(device_slice("n2", (0,))))
    assert not claims.devices(claiming_pod("u", "p"), Node("n2"), "n2").problem


def test_what_is_not_known_is_said(claims: Claims) -> None:
    assert "is not known" in claims.devices(claiming_pod("u", *[""]), NODE, "n1").problem
    claims.put_claim(sized_claim(claim("p", 5)))
    assert "4 of 5 devices" in claims.devices(claiming_pod("u", *["p"]), NODE, "n1").problem
    claims.drivers = frozenset()
    assert "has not allocated" in claims.devices(claiming_pod("u", *["p"]), NODE, "n1").problem


def test_devices_of_other_drivers_are_left_to_kube_scheduler(claims: Claims) -> None:
    claims.put_claim(sized_claim(claim("p")))
    claims.drivers = frozenset(["other.example.com"])
    found = claims.devices(claiming_pod("u", "p"), NODE, "n1")
    assert "not listed" in found.problem
    assert not found.is_short
    # A node without any device for the claim is known to lack one.
    assert claims.devices(claiming_pod("u", "p"), Node("n2"), "n2").is_short


def test_a_device_of_another_node_has_no_location(claims: Claims) -> None:
    assert claims.location(DeviceID(DRIVER, "n1", "gpu-2"), "n1") is not None
    assert claims.location(DeviceID(DRIVER, "n1", "gpu-2"), "n2") is None
    assert claims.location(DeviceID(DRIVER, "n1", "gpu-9"), "n1") is None
