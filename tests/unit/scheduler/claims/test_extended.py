"""The claim for extended resources that a class backs; test_recorded.py has the recorded results of kube-scheduler."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from topowise.pods import Spec
from topowise_scheduler.claims.extended import claim_of_pod, classes_by_resource, resources_of
from topowise_scheduler.claims.objects import DeviceClass, decode_class

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


def test_the_youngest_class_has_the_resource() -> None:
    old, young = _class("a", "2026-01-01T00:00:00Z"), _class("b", "2026-02-01T00:00:00Z")
    for classes in ([old, young], [young, old]):
        assert classes_by_resource(classes)[RESOURCE] is young
    alike = _class("c", "2026-02-01T00:00:00Z")
    for classes in ([alike, young], [young, alike]):
        assert classes_by_resource(classes)[RESOURCE] is young, "the first by name of equally old classes"


def test_each_class_has_a_resource_of_its_own() -> None:
    assert list(classes_by_resource([_class("gpu", "", None)])) == ["deviceclass.resource.kubernetes.io/gpu"]


def test_a_node_whose_device_plugin_has_the_resource_needs_no_claim() -> None:
    by_resource = classes_by_resource([_class("gpu", "")])
    spec = _spec([{"cpu": "1", RESOURCE: "2"}])
    resources = resources_of(spec, by_resource)
    assert resources == (RESOURCE,)
    assert claim_of_pod("team", spec, resources, {RESOURCE: 8}, by_resource) is None
    claim = claim_of_pod("team", spec, resources, {RESOURCE: 0, "cpu": 8000}, by_resource)
    assert claim is not None
    (request,) = claim.spec.devices.requests or ()
    assert request.exactly is not None
    assert (request.name, request.exactly.deviceClassName, request.exactly.count) == ("container-0-request-1", "gpu", 2)


def test_init_containers_use_the_devices_of_later_containers() -> None:
    by_resource = classes_by_resource([_class("gpu", "")])
    spec = _spec([{RESOURCE: "1"}], [{RESOURCE: "3"}, {RESOURCE: "1", "sidecar": True}, {RESOURCE: 2}])
    claim = claim_of_pod("team", spec, resources_of(spec, by_resource), {}, by_resource)
    assert claim is not None
    requests = {item.name: item.exactly.count for item in claim.spec.devices.requests or () if item.exactly is not None}
    assert requests == {"container-0-request-0": 1, "container-1-request-0": 1, "container-3-request-0": 1}


def test_pods_without_such_resources_have_none() -> None:
    by_resource = classes_by_resource([_class("gpu", "")])
    assert resources_of(_spec([{"cpu": "1", "example.com/other": "1"}]), by_resource) == ()
    assert resources_of(_spec([{RESOURCE: "0"}, {RESOURCE: "many"}]), by_resource) == ()
