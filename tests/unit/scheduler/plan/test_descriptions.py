"""Machines from `topowise-exporter machine` and lstopo."""

from __future__ import annotations

import msgspec
import pytest

from sandbox.exported import hardware_of
from topowise_exporter.machine.inventory import PciFunction
from topowise_exporter.machine.machine_json import as_json
from topowise_scheduler import plan
from topowise_scheduler.plan import PlanError

from .conftest import node_type

XML = b"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000003" gp_index="1">
  <object type="Package" os_index="0" cpuset="0x00000005" nodeset="0x00000001" gp_index="2">
   <object type="NUMANode" os_index="0" cpuset="0x00000005" nodeset="0x00000001" local_memory="8589934592" gp_index="3">
    <page_type size="4096" count="1572864"/><page_type size="2097152" count="1024"/>
   </object>
   <object type="L3Cache" os_index="4" cpuset="0x00000005" nodeset="0x00000001" gp_index="4">
    <object type="Core" os_index="0" cpuset="0x00000005" nodeset="0x00000001" gp_index="5">
     <object type="PU" os_index="0" gp_index="6"/><object type="PU" os_index="2" gp_index="7"/>
    </object>
   </object>
   <object type="Bridge" gp_index="8"><object type="PCIDev" pci_busid="0000:01:00.0"
     pci_type="0302 [10de:2330] [10de:0000] a1" gp_index="9"/></object>
  </object>
  <object type="Package" os_index="1" cpuset="0x0000000a" nodeset="0x00000002" gp_index="12">
   <object type="NUMANode" os_index="1" cpuset="0x0000000a" nodeset="0x00000002" gp_index="13"
     local_memory="8589934592"/>
   <object type="Core" os_index="0" cpuset="0x0000000a" nodeset="0x00000002" gp_index="15">
    <object type="PU" os_index="1" gp_index="16"/><object type="PU" os_index="3" gp_index="17"/>
   </object>
  </object>
 </object>
</topology>
"""


def test_the_exporters_json_gives_the_same_machine() -> None:
    machine = node_type(gpus=0).machine
    hardware = msgspec.structs.replace(
        hardware_of(machine), pci=(PciFunction("0000:81:00.0", 1, "0x030200", "0x10de", "0x2330", "nvidia", None, 0),)
    )
    read = plan.read_machine(msgspec.json.encode(as_json(hardware)), "a.json")
    assert read.numa == machine.numa
    assert [(entry.resource, [device.numa for device in entry.devices]) for entry in read.devices] == [
        ("nvidia.com/gpu", [(1,)])
    ]


def test_lstopo_gives_cores_memory_and_gpus() -> None:
    read = plan.read_machine(XML, "a.xml")
    assert [(node.id, node.memory, [core.threads for core in node.cores]) for node in read.numa] == [
        (0, 8 << 30, [(0, 2)]),
        (1, 8 << 30, [(1, 3)]),
    ]
    assert read.numa[0].hugepages == {2048: 1024}
    assert [core.socket for node in read.numa for core in node.cores] == [0, 1]
    assert [device.numa for device in read.devices[0].devices] == [(0,)]


def test_lstopo_gives_the_kubelets_cores() -> None:
    """CPUs of two cores with equal number are a core; a cache of the whole NUMA node is none of its cores."""
    alike = XML.replace(
        b'<object type="PU" os_index="2"',
        b"""</object>
    <object type="Core" os_index="0" gp_index="50"><object type="PU" os_index="2\"""",
    )
    assert [core.threads for core in plan.read_machine(alike, "a.xml").numa[0].cores] == [(0, 2)]
    apart = alike.replace(b'type="Core" os_index="0" gp_index="50"', b'type="Core" os_index="1" gp_index="50"')
    assert [(core.threads, core.uncore) for core in plan.read_machine(apart, "a.xml").numa[0].cores] == [
        ((0,), None),
        ((2,), None),
    ]
    part = apart.replace(b'os_index="4" cpuset="0x00000005"', b'os_index="4" cpuset="0x1"')
    assert [core.uncore for core in plan.read_machine(part, "a.xml").numa[0].cores] == [4, 4]
    unnumbered = part.replace(b'type="L3Cache" os_index="4"', b'type="L3Cache"')
    assert [core.uncore for core in plan.read_machine(unnumbered, "a.xml").numa[0].cores] == [None, None]


def test_lstopo_gives_distances() -> None:
    assert [node.distances for node in plan.read_machine(XML, "a.xml").numa] == [None, None]
    table = b"""<distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
  <indexes length="4">1 0 </indexes><u64values length="6">10 21 </u64values><u64values length="6">22 11 </u64values>
 </distances2></topology>"""
    read = plan.read_machine(XML.replace(b"</topology>", table), "a.xml")
    assert [node.distances for node in read.numa] == [(11, 22), (21, 10)]


def test_a_function_without_readable_class_is_no_gpu() -> None:
    function = PciFunction("0000:81:00.0", 1, "", "", "", None, None, 0)
    hardware = msgspec.structs.replace(hardware_of(node_type(gpus=0).machine), pci=(function,))
    assert plan.read_machine(msgspec.json.encode(as_json(hardware)), "a.json").devices == ()


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[1]", b"<a/>", b'<topology version="1.0"/>', b'<topology version="2.0"/>', b"<!ENTITY a 'b'>",
     b"\xff", XML.replace(b"<!DOCTYPE", b"<!ENTITY x 'y'><!DOCTYPE"), XML[:-40],
     b'{"nodes": [], "cpus": {"topology": {}}}'],
)  # fmt: skip
def test_other_text_is_refused_by_name(text: bytes) -> None:
    with pytest.raises(PlanError, match=r"a\.xml"):
        plan.read_machine(text, "a.xml")
