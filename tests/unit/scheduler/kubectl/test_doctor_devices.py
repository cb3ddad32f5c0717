"""Devices that topowise allocates, and claims that nobody may allocate, as the doctor finds them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from claim_objects import DRIVER, claim, claiming, device_slice
from scheduling import pod
from topowise.placement import ALLOCATED_FOR, GATE
from topowise_scheduler.kubectl.doctor import claims, devices
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.verdicts.kube_scheduler import Pod

from .conftest import NOW, ago

Json = dict[str, Any]
OTHER = "nic.example.com"
OWNED = frozenset({DRIVER})


def listed(*items: object) -> bytes:
    return json.dumps({"items": items}).encode()


def device_class(name: str, expression: str, **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}], **spec}}


CLASSES = devices.classes(
    listed(
        device_class("gpu", f'device.driver == "{DRIVER}"'),
        device_class("nic", f'device.driver == "{OTHER}"'),
        device_class("any", f'device.attributes["{DRIVER}"].there || true'),
        device_class("fails", f'device.attributes["{OTHER}"].missing == 1'),
        {"metadata": {"name": 7}},
    )
)
SLICES = (device_slice("n1", (0, 1)), device_slice("n1", (0, 1), driver=OTHER), {"spec": []})


def inventory(*slices: Json) -> devices.Devices:
    return devices.Devices(listed(*(slices or SLICES)), claims.SLICES)


def texts(findings: Any) -> list[str]:
    return [f"{item.severity} {item.thing}: {item.value}" for item in findings]


def config_map(text: str) -> Json:
    return {"data": {"scheduler.yaml": text}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resourceClaims: {enabled: true, drivers: [a, b]}", {"a", "b"}),
        ("resourceClaims: {enabled: false, drivers: [a]}", set()),
        ("resourceClaims: {enabled: true}", set()),
        ("resourceClaims: [", set()),
        ("[]", set()),
        ("", set()),
    ],
)
def test_the_drivers_are_in_the_config_map(text: str, expected: set[str]) -> None:
    assert devices.drivers(listed(config_map(text), {"data": None}, {})) == expected


def waiting(*claims_: Json, gated: bool = False, classes: Any = CLASSES, **fields: Any) -> list[str]:
    """Returns the findings about a pod that waits with these claims."""
    document = claiming("p", "2", *(item["metadata"]["name"] for item in claims_), **fields)
    if gated:
        document["spec"]["schedulingGates"] = [{"name": GATE}]
    by_key = claims.claims(listed(*claims_))
    found = devices.check_waiting([msgspec.convert(document, Pod)], by_key, OWNED, inventory(), classes)
    return texts(found)


def of_class(name: str, *classes: str, **fields: Any) -> Json:
    """Returns a claim with a request for a device of each class."""
    document = claim(name)
    requests = [{"name": item, "exactly": {"deviceClassName": item, **fields}} for item in classes]
    document["spec"]["devices"]["requests"] = requests
    return document


UNGATED = f"error pod default/p: waits without the gate {GATE}, and claims devices of {DRIVER}"
BOTH = f"warning pod default/p: waits for a claim that may get devices of {DRIVER} and of {OTHER}"


def test_a_pod_without_the_gate_waits_forever_for_devices_of_the_drivers() -> None:
    assert waiting(of_class("a", "gpu")) == [UNGATED]
    first = {"name": "first", "firstAvailable": [{"name": "x", "deviceClassName": "gpu"}]}
    prioritized = claim("a") | {"spec": {"devices": {"requests": [first]}}}
    assert waiting(prioritized) == [UNGATED]


def test_other_pods_do_not_wait_for_them() -> None:
    assert waiting(of_class("a", "gpu"), gated=True) == []
    assert waiting(of_class("a", "nic")) == []
    assert waiting(of_class("a", "fails")) == []
    assert waiting(of_class("a", "gpu", adminAccess=True)) == []
    assert waiting(of_class("a", "gpu", selectors=[{"cel": {"expression": "false"}}])) == []
    assert waiting(claim("a", 1, ["gpu-0"])) == [], "it is allocated"
    assert waiting(of_class("a", "gpu"), classes={}) == []
    assert waiting(of_class("a", "gpu"), node="n1") == []
    assert waiting(of_class("a", "gpu"), phase="Succeeded") == []


@pytest.mark.parametrize("gated", [False, True])
def test_claims_of_two_owners_are_found(gated: bool) -> None:
    assert waiting(of_class("a", "gpu", "nic"), gated=gated) == [BOTH]
    assert waiting(of_class("a", "any"), gated=gated) == [BOTH]


def test_a_selector_that_is_not_known_may_match() -> None:
    classes = devices.classes(listed(device_class("gpu", 'device.driver.format(["x"]) == "a"')))
    assert waiting(of_class("a", "gpu"), classes=classes) == [BOTH]


def test_drivers_without_slices_and_devices_of_the_nodes_amounts() -> None:
    by_name: dict[str, Any] = {}
    assert texts(devices.check(OWNED, inventory(), by_name)) == []
    missing = f"warning driver {DRIVER}: is in resourceClaims.drivers, and no ResourceSlice is of it"
    assert texts(devices.check(OWNED, inventory(SLICES[1]), by_name)) == [missing]
    for name in ("nodeAllocatableResourceMappings", "nodeAllocatableResources"):
        document = device_slice("n1", (0, 1))
        document["spec"]["devices"][1][name] = {"cpu": {"capacityKey": "cpu"}}
        (text,) = texts(devices.check(OWNED, inventory(document), by_name))
        assert text.startswith(f"warning driver {DRIVER}: 1 device with nodeAllocatableResourceMappings")


def test_a_class_of_an_extended_resource() -> None:
    for name in (DRIVER, OTHER):
        item = device_class("gpu", f'device.driver == "{name}"', extendedResourceName="example.com/gpu")
        found = texts(devices.check(OWNED, inventory(), devices.classes(listed(item))))
        expected = f"warning device class gpu: extendedResourceName example.com/gpu, for devices of {DRIVER}"
        assert found == ([expected] if name == DRIVER else [])


def allocated(*items: Json, uids: tuple[str, ...] = ("uid-p",)) -> list[str]:
    pods = [msgspec.convert(pod(uid) | {"metadata": {"name": uid, "uid": uid}}, Pod) for uid in uids]
    return texts(devices.check_allocated(claims.claims(listed(*items)), pods, NOW))


def test_a_device_of_two_claims_is_found() -> None:
    twice = f"error device {DRIVER}/n1/gpu-1: allocated to the claims default/a, default/b"
    first = claim("a", 2, ["gpu-0", "gpu-1"])
    assert allocated(first, claim("b", 1, ["gpu-1"])) == [twice]
    assert allocated(first, claim("b", 1, ["gpu-1"], node="n2")) == []
    assert allocated(first, claim("b", 1, ["gpu-1"], adminAccess=True)) == []
    shares = [claim(name, 1, ["gpu-0"], shareID=share) for name, share in (("a", "s1"), ("b", "s2"), ("c", "s2"))]
    assert allocated(*shares[:2]) == []
    assert allocated(*shares) == [
        f"error device {DRIVER}/n1/gpu-0: allocated to the claims default/b, default/c by the share s2"
    ]


@pytest.fixture
def left() -> Callable[..., list[str]]:
    def findings(mark: str, seconds: int, reserved: tuple[str, ...] = ()) -> list[str]:
        document = claim("a", 1, ["gpu-0"], reserved=reserved)
        document["metadata"]["annotations"] = {ALLOCATED_FOR: mark} if mark else {}
        document["status"]["allocation"]["allocationTimestamp"] = ago(seconds)
        return allocated(document)

    return findings


def test_an_allocation_for_a_pod_that_is_gone_is_found(left: Callable[..., list[str]]) -> None:
    gone = "warning claim default/a: allocated 20m ago by topowise for a pod that is gone (UID uid-gone)"
    assert left("uid-gone", 1200) == [gone]
    assert left("uid-gone", 1200, ("uid-gone",)) == [gone]
    assert left("uid-gone", 60) == [], "the leader is about to free it"
    assert left("uid-p", 1200) == []
    assert left("", 1200) == [], "kube-scheduler allocated it"
    assert left("uid-gone", 1200, ("uid-gone", "uid-p")) == [], "another pod uses it"
    (unknown,) = [devices.check_allocated({}, None, NOW)]
    assert not list(unknown)


def test_each_finding_says_why_and_what_next() -> None:
    found: list[Finding] = [
        *devices.check(OWNED, inventory(SLICES[1]), {}),
        *devices.check_allocated(claims.claims(listed(claim("a", 1, ["gpu-0"]), claim("b", 1, ["gpu-0"]))), (), NOW),
    ]
    assert len(found) == 2
    for finding in found:
        assert finding.check == "claims"
        assert finding.why
        assert finding.mend
