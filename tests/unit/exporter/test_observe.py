"""A reading finds every change, even if only a pod directory shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime.config import API_VERSION
from topowise_exporter.conditions import Condition
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.dra.slices import Device, Devices
from topowise_exporter.kubelet.allocations import (
    Allocatable,
    Allocations,
    Claim,
    ContainerAllocation,
    MemoryBlock,
    PodAllocation,
)
from topowise_exporter.kubelet.allocations import Device as Plugged
from topowise_exporter.machine.inventory import Machine
from topowise_exporter.observe import Hardware, HardwareReading, Observer, Reading

STATE = b'{"policyName":"static","defaultCpuSet":"0-1","entries":{"u":{"setup":"2-3"}},"checksum":0}'
MACHINE = Machine((), (), (), (), (), (), (), ())


class KnownHardware(Hardware):
    """A machine that is never scanned."""

    def read(self) -> HardwareReading:
        return HardwareReading(MACHINE)


class Kubelet:
    """Both sources of an observer, unchanging."""

    allocated = Allocatable(frozenset({1, 2, 3}))
    listed = (PodAllocation("ns", "p"),)
    name = version = ""
    problems = ()

    async def read(self, version: str | None) -> KubeletConfiguration:
        return KubeletConfiguration(cpuManagerPolicy="static")

    def expire(self) -> None:
        pass

    async def allocatable(self) -> Allocatable:
        return self.allocated

    async def pods(self) -> tuple[PodAllocation, ...]:
        return self.listed


def observer(root: Path, kubelet: Any = None, **options: Any) -> Observer:
    settings = ExporterConfiguration(apiVersion=API_VERSION, node_name="n", kubelet_root=str(root))
    fake: Any = kubelet or Kubelet()
    return Observer(settings, fake, fake, clock=lambda: 1.0, hardware=KnownHardware(settings), **options)


async def test_a_pod_whose_directory_comes_after_its_cpus_holds_them(tmp_path: Path) -> None:
    # The kubelet writes the state file at admission, and makes the pod's directory when it starts to run it.
    (tmp_path / "cpu_manager_state").write_bytes(STATE)
    reading = observer(tmp_path)
    assert (await reading.observe()).observation.allocations.unlisted == {}
    (tmp_path / "pods" / "u").mkdir(parents=True)
    assert (await reading.observe()).observation.allocations.unlisted == {"u": frozenset({2, 3})}


async def test_a_shared_cpu_is_free_although_a_pod_has_it(tmp_path: Path) -> None:
    """The kubelet gave CPU 2 to two pods, where a core lacks a sibling, and one of them has ended."""
    file = tmp_path / "cpu_manager_state"
    file.write_bytes(STATE.replace(b'"0-1"', b'"0-2"'))
    (tmp_path / "pods" / "u").mkdir(parents=True)
    reading = observer(tmp_path)
    allocations = (await reading.observe()).observation.allocations
    assert (allocations.unlisted, allocations.free_cpus) == ({"u": frozenset({2, 3})}, frozenset({1, 2}))
    file.unlink()
    assert (await reading.observe()).observation.allocations.free_cpus is None


async def test_without_allocatable_cpus_the_state_file_names_no_free_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the free CPUs follow from the machine and the pods."""
    (tmp_path / "cpu_manager_state").write_bytes(STATE)
    monkeypatch.setattr(Kubelet, "allocated", Allocatable())
    assert (await observer(tmp_path).observe()).observation.allocations.free_cpus is None


async def test_the_same_facts_are_the_same_object_with_and_without_a_finished_init_container(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_bytes(STATE)
    reading = observer(tmp_path)
    assert (await reading.observe()).observation is (await reading.observe()).observation
    (tmp_path / "pods" / "u").mkdir(parents=True)
    assert (await reading.observe()).observation is (await reading.observe()).observation


async def test_devices_of_resource_slices_are_taken_as_they_are_known_at_the_sync(tmp_path: Path) -> None:
    known: list[Devices] = [{}]
    reading = observer(tmp_path, devices=lambda: known[-1])
    first = (await reading.observe()).observation
    assert first.devices == {}
    assert (await reading.observe()).observation is first
    known.append({Claim("gpu.example.com", "n", "gpu-0"): Device(0)})
    second = (await reading.observe()).observation
    assert second.devices is known[-1]
    assert (await reading.observe()).observation is second


CARD = Claim("gpu.example.com", "n", "gpu-0")


class Before134(Kubelet):
    """A kubelet of 1.33, with the gates that its configuration has."""

    version = "v1.33.5"
    gates: dict[str, bool]

    def __init__(self, **gates: bool) -> None:
        self.gates = gates

    async def read(self, version: str | None) -> KubeletConfiguration:
        return KubeletConfiguration(featureGates=self.gates)


@pytest.mark.parametrize(
    ("version", "gates", "is_shown"),
    [
        ("v1.33.5", {}, False),
        ("v1.28.0", {"KubeletPodResourcesDynamicResources": False}, False),
        ("v1.33.5", {"KubeletPodResourcesDynamicResources": True}, True),
        ("v1.33.5", {"AllAlpha": True}, True),
        ("v1.34.0", {}, True),
        ("v1.34.0", {"KubeletPodResourcesDynamicResources": False}, False),
        ("v1.38.0", {}, True),
        ("", {}, True),
        ("v0.0.0", {}, True),
    ],
)
async def test_claimed_devices_are_left_out_where_list_does_not_name_their_pods(
    tmp_path: Path, version: str, gates: dict[str, bool], is_shown: bool
) -> None:
    fake = Before134(**gates)
    fake.version = version
    devices: Devices = {CARD: Device(0, "", (), is_whole=True, is_open=True)}
    result = await observer(tmp_path, fake, devices=lambda: devices).observe()
    assert (result.observation.devices == devices) is is_shown
    problem = result.problems.get(Condition.NO_CLAIMS)
    requirement = f"kubelet {version} without the feature gate KubeletPodResourcesDynamicResources"
    assert problem == (None if is_shown else requirement)


async def test_a_list_that_names_a_claimed_device_shows_that_the_kubelet_does(tmp_path: Path) -> None:
    fake = Before134()
    devices: Devices = {CARD: Device(0, "", (), is_whole=True, is_open=True)}
    reading = observer(tmp_path, fake, devices=lambda: devices)
    for containers in ((ContainerAllocation("c", claims=(CARD,)),), ()):
        fake.listed = (PodAllocation("ns", "p", containers),)
        assert (await reading.observe()).observation.devices == devices


class Node:
    """A kubelet whose answers, files and directories a test changes, and an observer of it with its last reading."""

    name = version = ""
    problems = ()
    reading: Reading
    config = KubeletConfiguration(cpuManagerPolicy="static", memoryManagerPolicy="Static")

    def __init__(self, root: Path) -> None:
        self.root = root
        self.allocated = ALLOCATABLE
        self.listed: tuple[PodAllocation, ...] = ()
        self.now = 100.0
        (root / "pods").mkdir()
        (root / "device-plugins").mkdir()
        self.socket = root / "kubelet.sock"
        self.start()
        settings = ExporterConfiguration(
            apiVersion=API_VERSION, node_name="n", kubelet_root=str(root), podresources_socket=str(self.socket)
        )
        fake: Any = self
        self.observer = Observer(settings, fake, fake, clock=lambda: self.now, hardware=KnownHardware(settings))

    def start(self) -> None:
        """As a kubelet that has just been started."""
        self.socket.unlink(missing_ok=True)
        (self.root / f"other-{self.__dict__.setdefault('starts', 0)}").touch()
        self.__dict__["starts"] += 1
        self.socket.touch()

    def write(self, cpus: dict[str, dict[str, str]], memory: dict[str, int] | None = None) -> None:
        """The state files: CPUs of containers, and bytes of each pod's container c on NUMA node 0."""
        self.write_cpus(cpus)
        entries = {
            uid: {"c": [{"numaAffinity": [0], "type": "memory", "size": size}]} for uid, size in (memory or {}).items()
        }
        used = sum((memory or {}).values())
        table = {"allocatable": 100, "reserved": used, "free": 100 - used}
        nodes = {"0": {"numberOfAssignments": len(entries), "memoryMap": {"memory": table}, "cells": [0]}}
        text = msgspec.json.encode({"policyName": "Static", "machineState": nodes, "entries": entries, "checksum": 0})
        (self.root / "memory_manager_state").write_bytes(text)

    def write_cpus(self, cpus: dict[str, dict[str, str]]) -> None:
        """Of the two files that of the CPU manager."""
        text = msgspec.json.encode({"policyName": "static", "defaultCpuSet": "0", "entries": cpus, "checksum": 0})
        (self.root / "cpu_manager_state").write_bytes(text)

    async def read(self, version: str | None) -> KubeletConfiguration:
        return self.config

    def expire(self) -> None:
        pass

    async def allocatable(self) -> Allocatable:
        return self.allocated

    async def pods(self) -> tuple[PodAllocation, ...]:
        return self.listed

    async def observe(self, after: float = 0.0) -> Allocations:
        self.now += after
        self.reading = await self.observer.observe()
        return self.reading.observation.allocations


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def holding(name: str, cpus: set[int], memory: int = 0, devices: tuple[Plugged, ...] = ()) -> PodAllocation:
    blocks = (MemoryBlock("memory", (0,), memory),) if memory else ()
    return PodAllocation("ns", name, (ContainerAllocation("c", frozenset(cpus), blocks, devices),))


ALLOCATABLE = Allocatable(frozenset({1, 2, 3}), (MemoryBlock("memory", (0,), 100),))


async def test_a_pod_that_is_being_admitted_is_nowhere_in_what_is_seen(node: Node, tmp_path: Path) -> None:
    node.write({})
    before = await node.observer.observe()
    assert not before.doubts
    # CPUs are given, memory is in the file and not in List yet; the memory manager has it taken already.
    node.write({"u": {"c": "2"}}, {"u": 40})
    node.listed = (holding("p", {2}),)
    admitting = await node.observer.observe()
    assert admitting.observation is before.observation
    assert admitting.withheld == {("ns", "p")}
    (tmp_path / "pods/u").mkdir()
    node.listed = (holding("p", {2}, 40),)
    whole = await node.observe()
    assert whole.pods == node.listed
    assert whole.free_memory is not None
    assert whole.free_memory.free == {(0, "memory"): 60}


def write_allocated(root: Path, *uids: str) -> None:
    """As a kubelet 1.36.2 writes it."""
    resources = {"c": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}
    data = msgspec.json.encode({"entries": {uid: {"ContainerResources": resources} for uid in uids}}).decode()
    (root / "allocated_pods_state").write_bytes(msgspec.json.encode({"data": data, "checksum": 2718281828}))


async def test_an_admission_ends_with_the_record_of_the_allocation_manager_or_a_directory(
    node: Node, tmp_path: Path
) -> None:
    node.write({})
    write_allocated(tmp_path)
    assert not node.observer.is_admitting()
    await node.observe()
    assert not node.observer.is_admitting()
    node.write({"u": {"c": "2"}, "v": {"c": "3"}})
    assert node.observer.is_admitting()
    write_allocated(tmp_path, "u")
    assert node.observer.is_admitting()
    (tmp_path / "pods/v").mkdir()
    assert not node.observer.is_admitting()


async def test_a_pod_that_is_written_down_as_admitted_needs_no_directory(node: Node, tmp_path: Path) -> None:
    """With systemd's cgroups the directory came 1.7 s (p50) to 8.3 s later on a kubelet 1.36.2."""
    node.write({})
    write_allocated(tmp_path)
    await node.observe()
    node.write({"u": {"c": "2"}}, {"u": 40})
    node.listed = (holding("p", {2}, 40),)
    assert (await node.observe()).pods == ()
    write_allocated(tmp_path, "u")
    assert (await node.observe()).pods == node.listed
    assert not node.reading.problems


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"data": 7}', b'{"data": "{"}', b'{"data": "{\\"entries\\": []}"}']
)
async def test_a_record_of_admissions_that_cannot_be_read_is_named_and_directories_prove(
    node: Node, tmp_path: Path, text: bytes
) -> None:
    node.write({})
    await node.observe()
    (tmp_path / "allocated_pods_state").write_bytes(text)
    node.write({"u": {"c": "2"}})
    node.listed = (holding("p", {2}),)
    assert (await node.observe()).pods == ()
    assert len(node.reading.problems) == 1
    (tmp_path / "pods/u").mkdir()
    assert (await node.observe()).pods == node.listed


async def test_a_directory_that_comes_after_list_was_asked_proves_nothing(node: Node, tmp_path: Path) -> None:
    node.write({})
    await node.observe()
    node.write({"u": {"c": "2"}})
    node.listed = (holding("p", {2}),)
    list_pods = node.pods

    async def late() -> tuple[PodAllocation, ...]:
        listed = await list_pods()
        (tmp_path / "pods/u").mkdir(exist_ok=True)
        return listed

    node.pods = late  # type: ignore[method-assign]
    assert (await node.observe()).pods == ()
    assert (await node.observe()).pods == node.listed


async def test_a_starting_kubelet_is_doubted_until_it_lists_what_its_files_have(node: Node, tmp_path: Path) -> None:
    node.write({"u": {"c": "2"}})
    (tmp_path / "pods/u").mkdir()
    node.listed = (holding("p", {2}),)
    await node.observe(after=100)
    assert not node.reading.doubts
    node.start()
    node.listed, node.allocated = (), Allocatable()
    await node.observe()
    assert node.reading.doubts == {"cpu-manager", "memory-manager", "pods"}
    node.allocated = ALLOCATABLE
    await node.observe(after=1)
    assert node.reading.doubts == {"pods"}
    node.listed = (holding("p", {2}),)
    await node.observe(after=1)
    assert not node.reading.doubts


async def test_a_pod_that_ended_while_the_kubelet_was_down_is_dead_when_its_directory_is_gone(
    node: Node, tmp_path: Path
) -> None:
    node.write({"u": {"c": "2"}})
    (tmp_path / "pods/u").mkdir()
    node.listed = (holding("p", {2}),)
    await node.observe()
    node.start()
    node.listed = ()
    await node.observe()
    assert node.reading.doubts == {"pods"}
    (tmp_path / "pods/u").rmdir()
    observation = await node.observe()
    assert not node.reading.doubts
    assert (observation.pods, observation.unlisted) == ((), {})


async def test_an_old_state_file_at_our_first_start_is_waited_for_a_minute_at_most(node: Node, tmp_path: Path) -> None:
    node.write({"old": {"c": "3"}})
    (tmp_path / "pods/old").mkdir()
    await node.observe()
    assert node.reading.doubts == {"pods"}
    await node.observe(after=61)
    assert not node.reading.doubts


async def test_what_the_last_object_had_beyond_list_is_not_waited_for(node: Node, tmp_path: Path) -> None:
    node.write({"left": {"setup": "3"}})
    (tmp_path / "pods/left").mkdir()
    node.observer.remember((), frozenset({"left"}))
    observation = await node.observe()
    assert not node.reading.doubts
    assert observation.unlisted == {"left": frozenset({3})}


CHECKPOINT = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"setup","ResourceName":"nic",'
    b'"DeviceIDs":{"0":["n0","n1"]},"AllocResp":""},{"PodUID":"u","ContainerName":"c","ResourceName":"nic",'
    b'"DeviceIDs":{"0":["n0"]},"AllocResp":""}],"RegisteredDevices":{"nic":["n0","n1"]}},"Checksum":1}'
)
NICS = (Plugged("nic", "n0", (0,)), Plugged("nic", "n1", (0,)))


async def test_devices_of_a_finished_init_container_stay_with_their_pod(node: Node, tmp_path: Path) -> None:
    node.allocated = Allocatable(ALLOCATABLE.cpus, ALLOCATABLE.memory, NICS)
    node.write({})
    file = tmp_path / "device-plugins/kubelet_internal_checkpoint"
    file.write_bytes(CHECKPOINT)
    (tmp_path / "pods/u").mkdir()
    node.listed = (holding("p", set(), 0, NICS[:1]),)
    assert (await node.observe()).unlisted_devices == {"u": (NICS[1],)}
    # As long as the file cannot be read, what it had holds.
    file.write_bytes(CHECKPOINT[:-9])
    assert (await node.observe()).unlisted_devices == {"u": (NICS[1],)}
    assert Condition.DEVICE_STATE in node.reading.problems
    node.listed = ()
    assert (await node.observe()).unlisted_devices == {}


@pytest.mark.parametrize("allocation", [{"memory": 40}, {"devices": NICS[:1]}])
async def test_cpus_of_a_finished_init_container_stay_with_a_pod_whose_containers_have_something_else(
    node: Node, tmp_path: Path, allocation: dict[str, Any]
) -> None:
    """Its container is on the shared pool, and listed with memory or devices alone."""
    node.allocated = Allocatable(ALLOCATABLE.cpus, ALLOCATABLE.memory, NICS)
    node.write({})
    await node.observe()
    node.write({"u": {"setup": "3"}}, {"u": allocation.get("memory", 0)})
    (tmp_path / "device-plugins/kubelet_internal_checkpoint").write_bytes(CHECKPOINT)
    (tmp_path / "pods/u").mkdir()
    node.listed = (holding("p", set(), **allocation),)
    observation = await node.observe()
    assert (observation.pods, observation.unlisted) == (node.listed, {"u": frozenset({3})})
    node.listed = ()
    assert (await node.observe()).unlisted == {}


async def test_of_two_pods_with_equal_memory_the_pod_with_the_listed_cpus_is_alive(node: Node, tmp_path: Path) -> None:
    """The dead pod's init container had more, which the kubelet releases before it admits the next pod."""
    node.write({})
    await node.observe()
    blocks = {"dead": {"setup": 40, "c": 10}, "alive": {"c": 10}}
    entries = {
        uid: {name: [{"numaAffinity": [0], "type": "memory", "size": size}] for name, size in sizes.items()}
        for uid, sizes in blocks.items()
    }
    table = {"allocatable": 100, "reserved": 60, "free": 40}
    nodes = {"0": {"numberOfAssignments": 3, "memoryMap": {"memory": table}, "cells": [0]}}
    state = {"policyName": "Static", "machineState": nodes, "entries": entries, "checksum": 0}
    (tmp_path / "memory_manager_state").write_bytes(msgspec.json.encode(state))
    node.write_cpus({"alive": {"c": "2"}})
    for uid in blocks:
        (tmp_path / "pods" / uid).mkdir()
    node.listed = (holding("p", {2}, 10),)
    observation = await node.observe()
    assert observation.pods == node.listed
    assert observation.free_memory is not None
    assert observation.free_memory.free == {(0, "memory"): 90}


async def test_a_plug_in_that_goes_while_the_kubelet_runs_leaves_its_row(node: Node) -> None:
    node.write({})
    node.allocated = Allocatable(ALLOCATABLE.cpus, ALLOCATABLE.memory, NICS)
    assert (await node.observe()).absent == ()
    node.allocated = ALLOCATABLE
    observation = await node.observe()
    assert not node.reading.doubts
    assert observation.absent == NICS


async def test_free_memory_holds_while_its_file_cannot_be_read_and_the_memory_is_the_same_pods(
    node: Node, tmp_path: Path
) -> None:
    node.write({"u": {"c": "2"}}, {"u": 40})
    (tmp_path / "pods/u").mkdir()
    node.listed = (holding("p", {2}, 40),)
    whole = await node.observe()
    (tmp_path / "memory_manager_state").write_bytes(b"{")
    assert (await node.observe()).free_memory == whole.free_memory
    node.listed = ()
    assert (await node.observe()).free_memory is None


async def test_a_node_without_managers_and_without_a_past_is_seen_at_once(node: Node) -> None:
    node.config = KubeletConfiguration()
    node.allocated = Allocatable()
    await node.observe()
    assert not node.reading.doubts


async def test_a_pod_that_ends_before_its_directory_was_seen_is_dead(node: Node, tmp_path: Path) -> None:
    node.write({})
    await node.observe()
    node.write({"u": {"c": "2"}})
    node.listed = (holding("p", {2}),)
    await node.observe()
    (tmp_path / "pods/u").mkdir()
    node.listed = ()
    assert (await node.observe()).unlisted == {}
