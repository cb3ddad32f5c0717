"""The claim for extended resources that a class backs; test_recorded.py has the recorded results of kube-scheduler."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from topowise.pods import Spec
from topowise_scheduler.claims.allocator import Unknown
from topowise_scheduler.claims.extended import ExtendedResources
from topowise_scheduler.claims.objects import DeviceClass, ResourceClaim, decode_class

RESOURCE = "example.com/gpu"


def _class(name: str, created: str, resource: str | None = RESOURCE) -> DeviceClass:
    spec = {} if resource is None else {"extendedResourceName": resource}
    return decode_class(json.dumps({"metadata": {"name": name, "creationTimestamp": created}, "spec": spec}).encode())


def _spec(containers: list[dict[str, Any]], init: list[dict[str, Any]] | None = None) -> Spec:
    def container(item: dict[str, Any]) -> dict[str, Any]:
        policy = {"restartPolicy": "Always"} if item.pop("sidecar", False) else {}
        return {"name": "c", "resources": {"requests": item}, **policy}

    raw = {
        "containers": [container(item) for item in containers],
        "initContainers": [container(item) for item in init or ()],
    }
    return msgspec.convert(raw, Spec)


def _requests(spec: Spec, *classes: DeviceClass, **allocatable: int) -> dict[str, tuple[str, int]] | None:
    """The requests of the claim by name, None without a claim."""
    extended = ExtendedResources(classes)
    claim = extended.claim("team", spec, extended.requested_by(spec), {RESOURCE: 0, **allocatable})
    if claim is None:
        return None
    assert isinstance(claim, ResourceClaim), claim
    requests = claim.spec.devices.requests or ()
    return {item.name: (item.exactly.deviceClassName, item.exactly.count) for item in requests if item.exactly}


def test_the_youngest_class_has_the_resource() -> None:
    old, young = _class("a", "2026-01-01T00:00:00Z"), _class("b", "2026-02-01T00:00:00Z")
    alike = _class("c", "2026-02-01T00:00:00Z")
    spec = _spec([{RESOURCE: "1"}])
    for classes in ([old, young], [young, old], [alike, young], [young, alike]):
        assert _requests(spec, *classes) == {"container-0-request-0": ("b", 1)}


def test_each_class_has_a_resource_of_its_own() -> None:
    spec = _spec([{"deviceclass.resource.kubernetes.io/gpu": "1"}])
    assert _requests(spec, _class("gpu", "", None)) == {"container-0-request-0": ("gpu", 1)}


def test_the_own_resource_of_a_class_without_the_name_it_shares_is_unknown() -> None:
    extended = ExtendedResources([_class("a", "2026-01-01T00:00:00Z"), _class("b", "2026-02-01T00:00:00Z")])
    spec = _spec([{"deviceclass.resource.kubernetes.io/a": "1"}])
    assert isinstance(extended.claim("team", spec, extended.requested_by(spec), {}), Unknown)


def test_a_node_whose_device_plugin_has_the_resource_needs_no_claim() -> None:
    spec = _spec([{"cpu": "1", RESOURCE: "2"}])
    assert _requests(spec, _class("gpu", ""), **{RESOURCE: 8}) is None
    assert _requests(spec, _class("gpu", ""), cpu=8000) == {"container-0-request-1": ("gpu", 2)}


def test_init_containers_use_the_devices_of_later_containers() -> None:
    spec = _spec([{RESOURCE: "1"}], [{RESOURCE: "3"}, {RESOURCE: "1", "sidecar": True}, {RESOURCE: 2}])
    assert _requests(spec, _class("gpu", "")) == {
        "container-0-request-0": ("gpu", 1),
        "container-1-request-0": ("gpu", 1),
        "container-3-request-0": ("gpu", 1),
    }


def test_pods_without_such_resources_have_none() -> None:
    extended = ExtendedResources([_class("gpu", "")])
    assert extended.requested_by(_spec([{"cpu": "1", "example.com/other": "1"}])) == ()
    assert extended.requested_by(_spec([{RESOURCE: "0"}, {RESOURCE: "many"}])) == ()
    assert _requests(_spec([{"cpu": "1"}]), _class("gpu", "")) is None
