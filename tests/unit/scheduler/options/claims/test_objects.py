"""Objects of resource.k8s.io: unknown fields, and input that is no such object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from topowise.errors import ParseError
from topowise_scheduler.options.claims.objects import (
    MOST_BYTES,
    decode_claim,
    decode_class,
    decode_slice,
)

DEVICE = {
    "attributes": {"numa": {"int": 1}, "model": {"string": "a100"}},
    "capacity": {"memory": {"value": "40Gi"}},
    "taints": [{"key": "broken", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
}
REQUEST = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2, "adminAccess": False}


def _slice(device: dict[str, Any]) -> bytes:
    spec = {
        "driver": "gpu.example.com",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 3, "resourceSliceCount": 1},
        "devices": [device],
    }
    meta = {"name": "n1-gpu", "uid": "u", "resourceVersion": "7", "managedFields": [{"manager": "driver"}]}
    return json.dumps({"apiVersion": "resource.k8s.io/v1", "metadata": meta, "spec": spec}).encode()


def _claim(request: dict[str, Any], **more: Any) -> dict[str, Any]:
    devices = {"requests": [request], "config": [{"opaque": {"driver": "d", "parameters": {"anything": [1]}}}]}
    return {"metadata": {"name": "c", "namespace": "team"}, "spec": {"devices": devices}, **more}


def test_the_fields_of_a_slice() -> None:
    current = decode_slice(_slice({"name": "gpu-0", **DEVICE}))
    (device,) = current.spec.devices or ()
    assert device.name == "gpu-0"
    assert (device.attributes or {})["numa"].integer == 1
    assert (device.capacity or {})["memory"].value == "40Gi"
    assert current.spec.pool.generation == 3
    assert current.not_modelled == ()


def test_the_fields_of_a_claim() -> None:
    current = decode_claim(json.dumps(_claim({"name": "r", "exactly": REQUEST})).encode())
    (request,) = current.spec.devices.requests or ()
    assert request.exactly is not None
    assert request.exactly.count == 2
    assert current.key == "team/c"


@pytest.mark.parametrize("more", [{}, {"priority": 1}])
def test_parameters_of_drivers_are_kept_as_they_are(more: dict[str, int]) -> None:
    claim = decode_claim(json.dumps(_claim({"name": "r", "exactly": {**REQUEST, **more}})).encode())
    (config,) = claim.spec.devices.config or ()
    assert json.loads(bytes(config.opaque)) == {"driver": "d", "parameters": {"anything": [1]}}
    assert bool(claim.not_modelled) is bool(more)


def test_an_allocation_names_its_devices() -> None:
    results = [{"request": "r", "driver": "d", "pool": "p", "device": "x", "future": 1}]
    raw = json.dumps(
        _claim({"name": "r", "exactly": REQUEST}, status={"allocation": {"devices": {"results": results}}})
    )
    claim = decode_claim(raw.encode())
    assert claim.status.allocation is not None
    (result,) = claim.status.allocation.devices.results or ()
    assert result.id == ("d", "p", "x")
    assert claim.not_modelled == (), "a field of a status changes no allocation"


@pytest.mark.parametrize(
    ("device", "path"),
    [
        ({"name": "x", "colour": "red"}, "spec.devices[].colour"),
        ({"name": "x", "attributes": {"a": {"float": 1.5}}}, "spec.devices[].attributes[].float"),
        ({"name": "x", "capacity": {"a": {"value": "1", "new": {}}}}, "spec.devices[].capacity[].new"),
    ],
)
def test_an_unknown_field_is_recorded(device: dict[str, Any], path: str) -> None:
    decoded = decode_slice(_slice(device))
    assert decoded.not_modelled == (path,)
    assert [item.name for item in decoded.spec.devices or ()] == ["x"]


def test_the_recorded_fields_are_bounded() -> None:
    device = {"name": "x", **{f"field-{number}": number for number in range(1000)}, "y" * 10_000: 1}
    paths = decode_slice(_slice(device)).not_modelled
    assert len(paths) <= 32
    assert max(map(len, paths)) <= 200


def test_an_unknown_field_of_a_class_is_recorded() -> None:
    raw = {"metadata": {"name": "gpu", "labels": {"a": "b"}}, "spec": {"selectors": [{"rego": "x"}]}}
    assert decode_class(json.dumps(raw).encode()).not_modelled == ("spec.selectors[].rego",)


def test_a_large_object_is_a_parse_error() -> None:
    with pytest.raises(ParseError, match=f"at most {MOST_BYTES} bytes"):
        decode_slice(b" " * (MOST_BYTES + 1))
