"""Machines from `topowise-exporter machine`."""

from __future__ import annotations

import msgspec
import pytest

from sandbox.exported import hardware_of
from topowise_exporter.machine.inventory import PciFunction
from topowise_exporter.machine.scan import as_json
from topowise_scheduler.overlay import plan
from topowise_scheduler.overlay.plan import PlanError

from .conftest import node_type


def test_the_exporters_json_gives_the_same_machine() -> None:
    machine = node_type(gpus=0).machine
    hardware = msgspec.structs.replace(
        hardware_of(machine), pci=(PciFunction("0000:81:00.0", 1, "0x030200", "0x10de", "0x2330", "nvidia", None),)
    )
    read = plan.read_machine(msgspec.json.encode(as_json(hardware)), "a.json")
    assert read.numa == machine.numa
    assert [(entry.resource, [device.numa for device in entry.devices]) for entry in read.devices] == [
        ("nvidia.com/gpu", [(1,)])
    ]


def test_a_function_without_readable_class_is_no_gpu() -> None:
    function = PciFunction("0000:81:00.0", 1, "", "", "", None, None)
    hardware = msgspec.structs.replace(hardware_of(node_type(gpus=0).machine), pci=(function,))
    assert plan.read_machine(msgspec.json.encode(as_json(hardware)), "a.json").devices == ()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[1]",
        b'<topology version="2.0"/>',
        b"\xff",
        b'{"nodes": [], "cpus": {"topology": {}}}',
        b'{"nodes": [{"id": 0, "memory_bytes": 1, "cpus": [7]}], "cpus": {"topology": {}}}',
    ],
)
def test_other_text_is_refused_by_name(text: bytes) -> None:
    with pytest.raises(PlanError, match=r"a\.json: .*expected the output of `topowise-exporter machine`"):
        plan.read_machine(text, "a.json")
