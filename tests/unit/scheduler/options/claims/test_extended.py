"""The claim for extended resources that a class backs, beside the recorded results of kube-scheduler."""

from __future__ import annotations

import json

import pytest

from topowise.pods import Container, Resources, Spec
from topowise_scheduler.options.claims.allocator import Unknown
from topowise_scheduler.options.claims.extended import ExtendedResources
from topowise_scheduler.options.claims.objects import DeviceClass, decode_class

RESOURCE = "example.com/gpu"


def _class(name: str, created: str) -> DeviceClass:
    meta = {"name": name, "creationTimestamp": created}
    return decode_class(json.dumps({"metadata": meta, "spec": {"extendedResourceName": RESOURCE}}).encode())


def _spec(**requests: str) -> Spec:
    return Spec(containers=(Container("c", Resources(requests=dict(requests))),))


def test_the_own_resource_of_a_class_without_the_name_it_shares_is_unknown() -> None:
    extended = ExtendedResources([_class("a", "2026-01-01T00:00:00Z"), _class("b", "2026-02-01T00:00:00Z")])
    spec = _spec(**{"deviceclass.resource.kubernetes.io/a": "1"})
    assert isinstance(extended.claim("team", spec, extended.requested_by(spec), {}), Unknown)


@pytest.mark.parametrize(
    "requests", [{"cpu": "1", "example.com/other": "1"}, {RESOURCE: "0"}, {RESOURCE: "many"}], ids=str
)
def test_pods_without_such_resources_have_none(requests: dict[str, str]) -> None:
    extended, spec = ExtendedResources([_class("gpu", "")]), _spec(**requests)
    assert extended.requested_by(spec) == ()
    assert extended.claim("team", spec, (), {RESOURCE: 0}) is None
