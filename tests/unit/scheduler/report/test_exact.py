"""Exact reports: the content of an object of topowise's exporter, its kubelet model, and when precision is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from sandbox.exported import exported
from topowise import attributes, nrt, pods
from topowise.attributes import devices
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler import report
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, NumaNode, Placement
from topowise_scheduler.report import Report

from .conftest import free_cpus, memory_tables, pod_of

GI = 1 << 30

CONFIG = KubeletConfiguration(
    topologyManagerPolicy="restricted",
    cpuManagerPolicy="static",
    memoryManagerPolicy="Static",
    reservedSystemCPUs="0",
    systemReserved={"memory": "1Gi"},
    reservedMemory=(MemoryReservation(0, {"memory": "1Gi"}),),
)
DEVICES = (
    DevicePlugin("gpu", (Device("g0", (0,)), Device("g1", (1,)))),
    DevicePlugin("nic", (Device("n0", (0, 1)), Device("n1", (0, 1)))),
)


def machine(*nodes: int, devices: tuple[DevicePlugin, ...] = (), pages: int = 0) -> Machine:
    """NUMA nodes with these ids; each has 4 cores of two threads and 8 GiB."""
    return Machine(
        numa=tuple(
            NumaNode(
                id=node,
                memory=8 * GI,
                cores=tuple(Core(at, (4 * at + core, 4 * (at + len(nodes)) + core)) for core in range(4)),
                hugepages={2048: pages},
                distances=tuple(10 if node == target else 20 for target in nodes),
            )
            for at, node in enumerate(nodes)
        ),
        devices=devices,
    )


def unknown(_name: report.PodName) -> None:
    return None


def with_attributes(topology: nrt.NodeResourceTopology, **changed: str | None) -> nrt.NodeResourceTopology:
    """The object with top-level attributes changed, or removed for None."""
    shown = nrt.attributes_of(topology.attributes) | {f"topowise.io/{name}": text for name, text in changed.items()}
    listed = tuple(nrt.Attribute(name, text) for name, text in shown.items() if text is not None)
    return msgspec.structs.replace(topology, attributes=listed)


def zones_with(topology: nrt.NodeResourceTopology, **changed: Any) -> nrt.NodeResourceTopology:
    """The object with some amounts of the first zone changed, as (capacity, allocatable, available)."""
    first, *other_zones = topology.zones or ()
    resources = tuple(
        nrt.Resource(resource.name, *changed[resource.name]) if resource.name in changed else resource
        for resource in first.resources or ()
    )
    return msgspec.structs.replace(topology, zones=(msgspec.structs.replace(first, resources=resources), *other_zones))


def read(topology: nrt.NodeResourceTopology) -> Report:
    node_report = report.read(topology)
    assert (node_report.precision, node_report.problems) == ("exact", ())
    return node_report


def test_an_unknown_pod_keeps_its_allocation_without_requests() -> None:
    kubelet = Kubelet(machine(0, 1), CONFIG)
    kubelet.admit(pod_of("a", {"cpu": "4", "memory": "2Gi"}))
    node_report = read(exported(machine(0, 1), CONFIG, kubelet))
    assert set(node_report.held) == {("default", "a")}
    restored = report.kubelet_of(node_report, unknown)
    assert set(restored.active) == {"default/a"}
    assert restored.placements("default/a")["c0"].cpus == kubelet.placements("a")["c0"].cpus
    known = report.kubelet_of(node_report, lambda name: (name[1], {"cpu": 4000, "memory": 10 * GI}))
    assert set(known.active) == {"a"}
    assert known.admit(pod_of("b", requests={"memory": "6Gi"})).reason == "OutOfmemory"
    assert restored.admit(pod_of("b", requests={"memory": "6Gi"})).admitted


def test_reports_that_differ_in_holdings_alone_share_the_empty_node() -> None:
    kubelet = Kubelet(machine(0, 1, devices=DEVICES), CONFIG)
    before = read(exported(machine(0, 1, devices=DEVICES), CONFIG, kubelet))
    kubelet.admit(pod_of("a", {"cpu": "4", "memory": "2Gi", "gpu": 1}))
    after = read(exported(machine(0, 1, devices=DEVICES), CONFIG, kubelet))
    assert after.empty is before.empty
    restored = report.kubelet_of(after, unknown)
    assert restored.devices.tables["gpu"] is before.empty.devices.tables["gpu"]
    assert restored.admit(pod_of("b", {"cpu": "4", "memory": "2Gi", "gpu": 1})).admitted
    assert not before.empty.active
    assert before.empty.devices.free("gpu").bit_count() == 2
    assert sum(free_cpus(before.empty)) == 15


def test_a_cpu_of_two_pods_is_free_once_one_of_them_has_ended() -> None:
    """As the code of 1.36.2 decides: the core of CPUs 0 and 4 counts as whole, though CPU 0 is in use."""
    cores = (Core(0, (0, 4)), Core(0, (1, 5)), Core(0, (2, 6)), Core(0, (3,)))
    lacking = Machine(numa=(NumaNode(id=0, memory=16 * GI, cores=cores, distances=(10,)),))
    config = KubeletConfiguration(
        topologyManagerPolicy="restricted", cpuManagerPolicy="static", reservedSystemCPUs="3", evictionHard={}
    )
    kubelet = Kubelet(lacking, config)
    for name, count, cpus in (("p1", "1", 1 << 0), ("p2", "2", 1 << 0 | 1 << 4), ("p3", "1", 1 << 1)):
        kubelet.admit(pod_of(name, {"cpu": count, "memory": "64Mi"}))
        assert kubelet.placements(name)["c0"].cpus == cpus
    kubelet.remove("p1")
    restored = report.kubelet_of(read(exported(lacking, config, kubelet)), unknown)
    assert kubelet.cpu is not None and restored.cpu is not None
    assert restored.cpu.default == kubelet.cpu.default
    pod = pod_of("p4", {"cpu": "1", "memory": "64Mi"})
    assert kubelet.fork().admit(pod).placements["c0"].cpus == 1 << 0
    assert restored.admit(pod).placements["c0"].cpus == 1 << 0


def test_cpus_a_finished_init_container_left_belong_to_its_pod() -> None:
    init = pods.Container("init", pods.Resources(limits={"cpu": "6", "memory": "1Gi"}))
    app = pods.Container("app", pods.Resources(limits={"cpu": "2", "memory": "1Gi"}))
    pod = pods.Pod(pods.Metadata("a", "default", "uid-a"), pods.Spec(containers=(app,), initContainers=(init,)))
    kubelet = Kubelet(machine(0, 1), CONFIG)
    kubelet.admit(pod)
    kubelet.start("uid-a")
    node_report = read(exported(machine(0, 1), CONFIG, kubelet, lambda uid: ("default", uid[4:])))
    assert set(node_report.held) == {("default", "a"), ("", "uid-a")}

    def requests_of(name: report.PodName) -> tuple[str, Mapping[str, int]] | None:
        return ("uid-a", {"cpu": 6000}) if name == ("default", "a") else None

    both = report.kubelet_of(node_report, requests_of)
    assert (set(both.active), sum(free_cpus(both))) == ({"uid-a"}, 15 - 6)
    ended = report.kubelet_of(node_report, requests_of, {("default", "a")})
    assert (set(ended.active), sum(free_cpus(ended))) == (set(), 15)
    forgotten = report.kubelet_of(node_report, unknown, {("default", "a"), ("", "uid-a")})
    assert (set(forgotten.active), sum(free_cpus(forgotten))) == (set(), 15)


def test_pod_level_resources_are_released_together() -> None:
    config = msgspec.structs.replace(
        CONFIG, topologyManagerScope="pod", featureGates={"PodLevelResourceManagers": True}
    )
    level = {"cpu": "6", "memory": "4Gi"}
    spec = pods.Spec(
        containers=(
            pods.Container("own", pods.Resources(limits={"cpu": "2", "memory": "1Gi"})),
            pods.Container("shared"),
        ),
        resources=pods.Resources(requests=dict(level), limits=dict(level)),
    )
    kubelet = Kubelet(machine(0, 1), config)
    assert kubelet.admit(pods.Pod(pods.Metadata("a", "default", "a"), spec)).admitted
    node_report = read(exported(machine(0, 1), config, kubelet))
    own = node_report.held["default", "a"][""]
    assert own.cpus is not None
    assert (own.cpus.bit_count(), [block.size for block in own.memory]) == (6, [4 * GI])
    restored = report.kubelet_of(node_report, unknown)
    assert memory_tables(restored).free == memory_tables(kubelet).free
    restored.remove("default/a")
    assert memory_tables(restored).free == memory_tables(node_report.empty).free
    assert sum(free_cpus(restored)) == 15


def test_the_kubelet_ignores_hugepages_created_after_its_start() -> None:
    """The kubelet keeps the memory it detected at start, and so does its allocatable memory."""
    kubelet = Kubelet(machine(0, 1), CONFIG)
    node_report = read(exported(machine(0, 1, pages=2048), CONFIG, kubelet))
    assert node_report.empty.memory is not None
    assert kubelet.memory is not None
    assert node_report.empty.memory.policy.allocatable == kubelet.memory.policy.allocatable
    assert report.kubelet_of(node_report, unknown).admit(pod_of("a", {"cpu": "1", "memory": "8Gi"})).admitted


def test_a_memory_percentage_follows_from_the_reservations() -> None:
    """The percentage refers to MemTotal of /proc/meminfo, which exceeds the sum of the NUMA nodes here."""
    threshold = 1 << 28
    config = msgspec.structs.replace(
        CONFIG,
        evictionHard={"memory.available": "1.5%"},
        reservedMemory=(MemoryReservation(0, {"memory": str(GI + threshold)}),),
    )
    resolved = msgspec.structs.replace(config, evictionHard={"memory.available": str(threshold)})
    kubelet = Kubelet(machine(0, 1), resolved)
    node_report = read(exported(machine(0, 1), config, kubelet))
    assert node_report.empty.allocatable()["memory"] == kubelet.allocatable()["memory"]


def test_cpus_unknown_to_the_kubelet_are_not_allocated() -> None:
    kubelet = Kubelet(machine(0, 1), CONFIG)
    topology = exported(machine(0, 1), CONFIG, kubelet)
    first, second = topology.zones or ()
    shown = nrt.attributes_of(first.attributes) | {attributes.ZONE_CPUS_AVAILABLE: "1-2"}
    first = msgspec.structs.replace(first, attributes=tuple(nrt.Attribute(*item) for item in shown.items()))
    topology = msgspec.structs.replace(topology, zones=(first, second))
    node_report = report.read(zones_with(topology, cpu=("8", "2", "2")))
    assert node_report.precision == "exact"
    assert node_report.problems == (
        "zone node-0: 2 CPUs are allocatable, expected 7 by cores and configuration; free CPUs are used as published",
    )
    admission = report.kubelet_of(node_report, unknown).admit(pod_of("a", {"cpu": "2", "memory": "1Gi"}))
    assert admission.placements["c0"].cpus == 0b110


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"holdings": None}, "attribute topowise.io/holdings: missing"),
        ({"cores": None}, "attribute topowise.io/cores: missing"),
        ({"cores": "0:0:0-3"}, "in no core"),
        ({"kubelet-configuration": "{"}, "kubelet configuration '{'"),
        ({"kubelet-configuration": '{"cpuManagerPolicy":"static"}'}, "no kubelet would start with it"),
        ({"holdings": '[["a","b",[["c","0-",[],{}]]]]'}, "cpu list '0-'"),
        ({"holdings": '[["a","b",[["c","",[["memory","7",1]],{}]]]]'}, "1 bytes of 'memory' on NUMA nodes '7'"),
        ({"holdings": '[["a","b",[["c","",[["memory","0",-1]],{}]]]]'}, "-1 bytes of 'memory'"),
        ({"devices": '{"gpu":0}'}, "devices '{\"gpu\":0}'"),
        ({"derived-from-sysfs": "cpu"}, "attribute topowise.io/derived-from-sysfs: cpu"),
        ({"derived-from-sysfs": "memory"}, "attribute topowise.io/derived-from-sysfs: memory"),
    ],
)
def test_an_unusable_attribute_makes_a_report_of_counts(changed: dict[str, str | None], why: str) -> None:
    node_report = report.read(
        with_attributes(exported(machine(0, 1), CONFIG, Kubelet(machine(0, 1), CONFIG)), **changed)
    )
    assert node_report.precision == "counts"
    assert why in node_report.problems[0]
    assert node_report.problems[0].endswith("; the node is predicted from counts")
    assert not node_report.held


def test_more_nodes_than_masks_are_modelled_for_leave_sums() -> None:
    wide = machine(*range(20))
    config = KubeletConfiguration(
        topologyManagerPolicy="restricted", topologyManagerPolicyOptions={"max-allowable-numa-nodes": "32"}
    )
    kubelet = Kubelet(wide, KubeletConfiguration())
    node_report = report.read(exported(wide, config, kubelet))
    assert node_report.precision == "counts"
    assert "masks are modelled up to 16" in node_report.problems[0]
    assert report.kubelet_of(node_report, unknown).admit(pod_of("a", {"cpu": "100", "memory": "100Gi"})).admitted
    assert not report.kubelet_of(node_report, unknown).admit(pod_of("a", {"cpu": "161", "memory": "1Gi"})).admitted


@pytest.mark.parametrize("memory", [{}, {"memoryManagerPolicy": "None", "reservedMemory": None}])
@pytest.mark.parametrize("before", [0, 12])
def test_numa_nodes_of_gpu_memory_are_left_out_and_no_id_changes(memory: dict[str, Any], before: int) -> None:
    # 32 NUMA nodes without CPUs or memory, some with lower ids than the NUMA nodes with CPUs and memory.
    full = machine(before, before + 1).numa
    bare_ids = (number for number in range(34) if number not in (before, before + 1))
    bare = tuple(NumaNode(number, 0, (), {2048: 0}) for number in bare_ids)
    numa = tuple(msgspec.structs.replace(node, distances=None) for node in (*full, *bare))
    gpus = DevicePlugin("gpu", (Device("g0", (before + 1,)),))
    wide = Machine(numa=numa, devices=(gpus,))
    fields = {"topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "64"}, **memory}
    reserved = (MemoryReservation(before, {"memory": "1Gi"}),)
    config = msgspec.structs.replace(CONFIG, **({"reservedMemory": reserved} | fields))
    kubelet = Kubelet(wide, config)
    assert kubelet.admit(pod_of("there", {"cpu": "5", "memory": "1Gi", "gpu": "1"})).admitted
    node_report = read(exported(wide, config, kubelet))
    assert (node_report.precision, node_report.problems) == ("exact", ())
    again = report.kubelet_of(node_report, unknown)
    assert again.node_ids == kubelet.node_ids
    for limits in ({"cpu": "4", "memory": "1Gi"}, {"cpu": "4", "memory": "1Gi"}, {"cpu": "4", "memory": "6Gi"}):
        pod = pod_of("next", limits)
        assert again.fork().admit(pod) == kubelet.fork().admit(pod)


def test_a_report_has_its_node_version_and_fingerprint() -> None:
    node_report = read(exported(machine(0, 1), CONFIG, Kubelet(machine(0, 1), CONFIG)))
    assert (node_report.name, node_report.version, node_report.fingerprint_method) == (
        "n1",
        "",
        "with-exclusive-resources",
    )
    assert node_report.fingerprint == "pfp0v001ef46db3751d8e999"


def test_two_pods_of_the_same_name_keep_both_allocations() -> None:
    kubelet = Kubelet(machine(0, 1), CONFIG)
    kubelet.admit(pod_of("old", {"cpu": "2", "memory": "1Gi"}))
    kubelet.admit(pod_of("new", {"cpu": "3", "memory": "1Gi"}))
    node_report = read(exported(machine(0, 1), CONFIG, kubelet, lambda _uid: ("default", "same")))
    restored = report.kubelet_of(node_report, unknown)
    assert sum(free_cpus(restored)) == 10
    restored.remove("default/same")
    assert sum(free_cpus(restored)) == 15


def test_a_restored_placement_has_no_hint() -> None:
    kubelet = Kubelet(machine(0, 1), CONFIG)
    kubelet.admit(pod_of("a", {"cpu": "4", "memory": "2Gi"}))
    placement = read(exported(machine(0, 1), CONFIG, kubelet)).held["default", "a"]["c0"]
    original = kubelet.placements("a")["c0"]
    assert placement == Placement("app", None, False, original.cpus, original.memory, {})


def test_a_resource_without_its_plugin_refuses_pods_that_request_it() -> None:
    # The kubelet ignores requests for an unregistered resource. It refuses a resource without healthy devices.
    config = KubeletConfiguration(cpuManagerPolicy="static", reservedSystemCPUs="0")
    topology = exported(machine(0), config, Kubelet(machine(0), config))
    away = (
        *(attribute for attribute in topology.attributes or () if attribute.name != attributes.DEVICES),
        nrt.Attribute(attributes.DEVICES, devices.write((), empty=("gpu",))),
    )
    admitted = []
    for shown in (topology.attributes, away):
        node_report = report.read(msgspec.structs.replace(topology, attributes=shown))
        assert node_report.precision == "exact"
        admitted.append(report.kubelet_of(node_report, lambda _name: None).admit(pod_of("q", {"gpu": 1})).admitted)
    assert admitted == [True, False]


def test_a_device_near_no_numa_node_that_exists_is_aligned_with_no_pod() -> None:
    """A plug-in that passes on the -1 of sysfs names such a node (getNUMANodeIds in topology_hints.go)."""
    hardware = machine(0, 1, devices=(DevicePlugin("gpu", (Device("g0", (99,)), Device("g1", (99,)))),))
    original = Kubelet(hardware, CONFIG)
    restored = report.kubelet_of(report.read(exported(hardware, CONFIG, original)), lambda _: None)
    requesting = pod_of("p", {"cpu": "2", "memory": "1Gi", "gpu": "1"})
    reasons = [kubelet.fork().admit(requesting).reason for kubelet in (original, restored)]
    assert reasons == ["TopologyAffinityError", "TopologyAffinityError"]


def test_device_plugins_come_in_the_order_of_their_names() -> None:
    """Sets of texts have another order in each process, and two replicas explain a refusal in the same words."""
    names = [f"example.com/{name}" for name in "abcdefgh"]
    hardware = machine(0, devices=tuple(DevicePlugin(name, (Device("d", (0,)),)) for name in reversed(names)))
    seen = report.read(exported(hardware, CONFIG, Kubelet(hardware, CONFIG)))
    assert list(report.kubelet_of(seen, lambda _: None).devices.tables) == names
