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
   <object type="L3Cache" cpuset="0x00000005" nodeset="0x00000001" gp_index="4">
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
    assert read.numa[0].hugepages == {2048: 1024} and read.numa[0].cores[0].uncore == 4
    assert [core.socket for node in read.numa for core in node.cores] == [0, 1]
    assert [device.numa for device in read.devices[0].devices] == [(0,)]


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[1]", b"<a/>", b'<topology version="1.0"/>', b'<topology version="2.0"/>', b"<!ENTITY a 'b'>",
     b"\xff", XML.replace(b"<!DOCTYPE", b"<!ENTITY x 'y'><!DOCTYPE"), XML[:-40],
     b'{"nodes": [], "cpus": {"topology": {}}}'],
)  # fmt: skip
def test_other_text_is_refused_by_name(text: bytes) -> None:
    with pytest.raises(PlanError, match=r"a\.xml"):
        plan.read_machine(text, "a.xml")
