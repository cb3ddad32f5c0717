"""Where devices are, in the object: which ids lead to a function, and what does not change does not change the text."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from sandbox import machines
from topowise import attributes, nrt, pci
from topowise.attributes import devices as device_ids
from topowise.attributes import pci_devices
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter import machine
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.allocations import Allocatable, Allocations, Device
from topowise_exporter.publish.topology import Observation, Publishing, build

GPU, NIC, VF, NVME = "nvidia.com/gpu", "rdma/shared", "intel.com/vf", "example.com/nvme"
UUID = "GPU-8f1b2c3d-0a1b-2c3d-4e5f-0123456789ab"
SWITCH = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
# A GPU and a NIC on a shared switch, a NIC with virtual functions and a disk on root ports of the other socket.
SPEC = machines.Machine(
    nodes=(
        machines.Node(0, machines.GIB, cores=2),
        machines.Node(1, machines.GIB, socket=1, cores=2),
        machines.Node(2, machines.GIB),
    ),
    distances=((10, 21, 14), (21, 10, 24), (14, 24, 10)),
    pci=(
        *machines.switch("0000:00:01.0", "0000:01:00.0", ("0000:02:00.0", "0000:02:01.0"), 0),
        machines.gpu("0000:03:00.0", 0, "0000:02:00.0")[1],
        machines.nic("0000:04:00.0", 0, "0000:02:01.0")[1],
        *machines.nic("0000:98:00.0", 1, "0000:97:00.0", virtual_functions=3),
        machines.root_port("0000:97:01.0", 1),
        machines.nvme("0000:99:00.0", None, "0000:97:01.0"),
    ),
)
DEVICES = (
    Device(GPU, UUID, (0,)),
    Device(NIC, "mlx5_0", (0,)),
    Device(VF, "0000:98:00.1", (1,)),
    Device(VF, "0000:98:00.2", (1,)),
    Device(NVME, "0000:99:00.0", ()),
    Device("example.com/counted", "0", (1,)),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    machines.write_tree(SPEC, tmp_path)
    _link(tmp_path, "infiniband/mlx5_0", f"{'/'.join(SWITCH)}/0000:02:01.0/0000:04:00.0")
    _link(tmp_path, "drm/card1", f"{'/'.join(SWITCH)}/0000:02:00.0/0000:03:00.0")
    gpu = tmp_path / "proc/driver/nvidia/gpus/0000:03:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t {UUID}\n")
    return tmp_path


def _link(root: Path, name: str, below: str) -> None:
    path = root / "sys/class" / name
    path.parent.mkdir(parents=True)
    path.symlink_to(f"../../devices/{below}/{name}")


def topology_of(root: Path, *devices: Device, **publishing: bool) -> nrt.NodeResourceTopology:
    read = machine.scan(str(root / "sys"), str(root / "proc"))
    seen = Observation(read, KubeletConfiguration(), Allocations(Allocatable(frozenset(), (), devices)))
    built = build("n", seen, Publishing(**publishing), Exclusions())
    assert built.problems == ()
    return built.topology


def placed(root: Path, *devices: Device) -> dict[str, pci_devices.Located]:
    return pci_devices.read(nrt.attributes_of(topology_of(root, *devices).attributes)[attributes.PCI])


def test_devices_are_placed_by_address_by_name_and_by_uuid(root: Path) -> None:
    functions = placed(root, *DEVICES)
    assert {name: function.address for name, function in functions.items()} == {
        UUID: "0000:03:00.0",
        "mlx5_0": "0000:04:00.0",
        "0000:98:00.1": "0000:98:00.1",
        "0000:98:00.2": "0000:98:00.2",
        "0000:99:00.0": "0000:99:00.0",
    }
    assert functions[UUID].place == pci.Place((*SWITCH, "0000:02:00.0"), 0)
    assert functions["0000:99:00.0"].place == pci.Place(("pci0000:97", "0000:97:01.0"), None)
    assert pci.distance(functions[UUID].place, functions["mlx5_0"].place) == "PIX"
    assert pci.distance(functions["0000:98:00.1"].place, functions["0000:99:00.0"].place) == "PHB"
    assert pci.distance(functions[UUID].place, functions["0000:98:00.1"].place) == "SYS"


@pytest.mark.parametrize(
    "device_id", [UUID, f"{UUID}::7", "card1", "card1-0", "0000:03:00.0", "00000000:03:00.0", "0000:03:00.0::1"]
)
def test_one_function_has_many_spellings(root: Path, device_id: str) -> None:
    assert placed(root, Device(GPU, device_id, (0,)))[device_id].address == "0000:03:00.0"


@pytest.mark.parametrize("device_id", ["0", "MIG-8f1b2c3d", "0000:03:00.7", "card1-", "mlx5_00", "", "::1"])
def test_devices_known_only_to_their_plug_in_are_left_out(root: Path, device_id: str) -> None:
    shown = nrt.attributes_of(topology_of(root, Device(GPU, device_id, (0,))).attributes)
    assert attributes.PCI not in shown
    assert attributes.PCI_OMITTED not in shown
    assert attributes.DEVICES in shown


def test_an_unchanged_machine_gives_the_same_bytes_and_a_single_new_attribute(root: Path) -> None:
    first = msgspec.json.encode(topology_of(root, *DEVICES))
    assert msgspec.json.encode(topology_of(root, *reversed(DEVICES))) == first
    with_places = topology_of(root, *DEVICES)
    shutil.rmtree(root / "sys/bus/pci")
    without = topology_of(root, *DEVICES)
    assert [entry for entry in with_places.attributes or () if entry.name != attributes.PCI] == list(
        without.attributes or ()
    )
    assert with_places.zones == without.zones


def test_excluded_resources_have_no_places(root: Path) -> None:
    read = machine.scan(str(root / "sys"), str(root / "proc"))
    seen = Observation(read, KubeletConfiguration(), Allocations(Allocatable(frozenset(), (), DEVICES)))
    built = build("n", seen, Publishing(nested_zones=True), Exclusions(resources=("intel.com/*", NVME, GPU)))
    shown = nrt.attributes_of(built.topology.attributes)
    assert list(pci_devices.read(shown[attributes.PCI])) == ["mlx5_0"]
    assert [zone.name for zone in built.topology.zones or () if zone.type == "PCIeRoot"] == ["pci0000:00"]


def test_devices_beyond_the_size_limit_are_counted(root: Path) -> None:
    many = tuple(Device(VF, f"0000:98:00.1::{number}", (1,)) for number in range(2000))
    gpu = Device(GPU, "0000:03:00.0", (0,))
    shown = nrt.attributes_of(topology_of(root, gpu, *many).attributes)
    assert shown[attributes.PCI_OMITTED] == "2000"
    assert len(shown[attributes.PCI]) <= pci_devices.LONGEST
    assert list(pci_devices.read(shown[attributes.PCI])) == ["0000:03:00.0"]


def test_zones_are_flat_unless_they_are_wanted_nested(root: Path) -> None:
    flat = topology_of(root, *DEVICES)
    assert {(zone.type, zone.parent) for zone in flat.zones or ()} == {("Node", "")}
    nested = topology_of(root, *DEVICES, nested_zones=True)
    assert [(zone.name, zone.type, zone.parent) for zone in nested.zones or ()] == [
        ("node-0", "Node", "socket-0"),
        ("node-1", "Node", "socket-1"),
        ("node-2", "Node", ""),
        ("pci0000:00", "PCIeRoot", "node-0"),
        ("pci0000:97", "PCIeRoot", "node-1"),
        ("socket-0", "Socket", ""),
        ("socket-1", "Socket", ""),
    ]
    # A reader that sums zones without checking their type counts nothing twice.
    assert all(zone.type == "Node" or not zone.resources for zone in nested.zones or ())
    assert nested.attributes == flat.attributes
    assert [zone for _, zone in nrt.numa_zones(nested)][2] == (flat.zones or ())[2]


def test_a_root_complex_names_the_devices_below_it(root: Path) -> None:
    nested = topology_of(root, *DEVICES, nested_zones=True)
    (zone,) = [zone for zone in nested.zones or () if zone.name == "pci0000:97"]
    below = device_ids.read(nrt.attributes_of(zone.attributes)[attributes.DEVICES])
    assert [device.id for device in below] == ["0000:99:00.0", "0000:98:00.1", "0000:98:00.2"]


def test_the_firmwares_figures_of_memory_are_on_its_zone(root: Path) -> None:
    folder = root / "sys/devices/system/node/node2/access0/initiators"
    folder.mkdir(parents=True)
    (folder / "node0").symlink_to("../../../node0")
    (folder / "read_latency").write_text("200\n")
    (folder / "read_bandwidth").write_text("16384\n")
    zones = topology_of(root).zones or ()
    shown = [
        {name: text for name, text in nrt.attributes_of(zone.attributes).items() if "/memory-" in name}
        for zone in zones
    ]
    assert shown == [
        {},
        {},
        {
            "topowise.io/memory-initiators": "0",
            "topowise.io/memory-read-latency-ns": "200",
            "topowise.io/memory-read-bandwidth-mib": "16384",
        },
    ]
    assert [(cost.name, cost.value) for cost in zones[2].costs or ()] == [
        ("node-0", 14),
        ("node-1", 24),
        ("node-2", 10),
    ]


def test_a_gpu_is_on_its_own_memory_node_whatever_its_number(tmp_path: Path) -> None:
    """As on a GB200: two nodes with CPUs, and memory nodes of GPUs up to the last id that a kubelet has bits for."""
    ids = (0, 1, *range(2, 34), 63)
    spec = machines.Machine(
        nodes=tuple(machines.Node(at, machines.GIB, socket=at, cores=2 if at < 2 else 0) for at in ids),
        distances=tuple(tuple(10 if node_id == other_id else 40 for other_id in ids) for node_id in ids),
        pci=(*machines.gpu("0008:01:00.0", 33, "0008:00:00.0"), *machines.gpu("0009:01:00.0", 63, "0009:00:00.0")),
    )
    machines.write_tree(spec, tmp_path)
    gpus = (Device(GPU, "0008:01:00.0", (33,)), Device(GPU, "0009:01:00.0", (63,)))
    topology = topology_of(tmp_path, *gpus, nested_zones=True)
    zones = dict(nrt.numa_zones(topology))
    assert sorted(zones) == sorted(ids)
    with_gpus = [numa_id for numa_id, zone in zones.items() if any(row.name == GPU for row in zone.resources or ())]
    assert with_gpus == [33, 63]
    assert {zone.parent for numa_id, zone in zones.items() if numa_id > 1} == {""}
    parents = {zone.name: zone.parent for zone in topology.zones or () if zone.type == "PCIeRoot"}
    assert parents == {"pci0008:00": "node-33", "pci0009:00": "node-63"}
    functions = pci_devices.read(nrt.attributes_of(topology.attributes)[attributes.PCI])
    assert [function.place.numa_node for function in functions.values()] == [33, 63]
