"""A node predicted from amounts never admits more than is available; and the simplest machine with the amounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from topowise import nrt, pods, quantity
from topowise_scheduler import report
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.hints import Admission

from .conftest import free_cpus, pod_of, topology_of

MI = 1 << 20


def kubelet_of(topology: nrt.NodeResourceTopology) -> Kubelet:
    node_report = report.read(topology)
    assert node_report.precision == "counts"
    return report.kubelet_of(node_report, lambda _name: None)


# ---- never more permissive


def triples(unit: int, most: int, suffix: str = "") -> st.SearchStrategy[tuple[str, str, str]]:
    """Amounts (capacity, allocatable, available), which may contradict each other."""
    amount = st.integers(-2, most).map(lambda number: f"{number * unit}{suffix}")
    return st.tuples(amount, amount, amount)


ZONES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "cpu": triples(500, 20, "m"),
            "memory": triples(MI // 2 + 1, 20),
            "hugepages-2Mi": triples(MI, 8),
            "gpu": triples(1, 4),
        },
    ),
    min_size=1,
    max_size=4,
)
LIMITS = st.fixed_dictionaries(
    {"cpu": st.sampled_from(["500m", "1", "2", "3"]), "memory": st.integers(1, 6).map(lambda number: number * MI)},
    optional={"gpu": st.integers(0, 2), "hugepages-2Mi": st.integers(0, 2).map(lambda number: 2 * number * MI)},
)
PODS = st.lists(st.tuples(st.lists(LIMITS, min_size=1, max_size=3), st.booleans()), min_size=1, max_size=6)


@settings(max_examples=examples(30), deadline=None)
@given(
    zones=ZONES,
    specs=PODS,
    policy=st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    scope=st.sampled_from(["container", "pod"]),
    ids=st.sampled_from([(0, 1, 2, 3), (0, 8, 9, 17)]),
)
def test_admitted_pods_fit_the_available_amounts(
    zones: list[dict[str, tuple[str, str, str]]],
    specs: list[tuple[list[dict[str, Any]], bool]],
    policy: str,
    scope: str,
    ids: tuple[int, ...],
) -> None:
    document = {
        "metadata": {"name": "n1"},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": policy},
            {"name": "topologyManagerScope", "value": scope},
        ],
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "resources": [
                    {"name": name, "capacity": amounts[0], "allocatable": amounts[1], "available": amounts[2]}
                    for name, amounts in zone.items()
                ],
            }
            for number, zone in zip(ids, zones, strict=False)
        ],
    }
    kubelet = kubelet_of(nrt.decode(msgspec.json.encode(document)))
    available = {
        number: {name: max(0, quantity.for_resource(name, amounts[2])) for name, amounts in zone.items()}
        for number, zone in zip(ids, zones, strict=False)
    }
    requested: dict[str, int] = {}
    placed: dict[int, dict[str, int]] = {}
    for number, (containers, is_guaranteed) in enumerate(specs):
        pod = _pod(f"p{number}", containers, is_guaranteed=is_guaranteed)
        admission = kubelet.admit(pod)
        if admission.admitted:
            for name, amount in pods.needs(pod).requests.items():
                requested[name] = requested.get(name, 0) + amount
            _place(kubelet, admission, placed, single=policy == "single-numa-node" and len(zones) > 1)
    shown = {name for zone in zones for name in zone}
    cpus = [zone["cpu"] for zone in zones if "cpu" in zone]
    if all(quantity.milli_value(triple[1]) == 0 for triple in cpus) and any(
        quantity.milli_value(triple[0]) > 0 for triple in cpus
    ):
        # The system reserves all CPUs of all zones: the CPU manager is off, so the amounts do not bound CPUs.
        shown -= {"cpu"}
    for name in shown:
        assert requested.get(name, 0) <= sum(free.get(name, 0) for free in available.values())
        for zone_id, taken in placed.items():
            assert taken.get(name, 0) <= available[zone_id].get(name, 0)


def _pod(uid: str, containers: Sequence[Mapping[str, Any]], *, is_guaranteed: bool) -> pods.Pod:
    spec_containers = []
    for at, amounts in enumerate(containers):
        limits = dict(amounts)
        requests = limits if is_guaranteed else {**limits, "cpu": "250m"}
        spec_containers.append(pods.Container(f"c{at}", pods.Resources(requests=requests, limits=limits)))
    return pods.Pod(pods.Metadata(uid, "default", uid), pods.Spec(containers=tuple(spec_containers)))


def _place(kubelet: Kubelet, admission: Admission, placed: dict[int, dict[str, int]], *, single: bool) -> None:
    """Adds the allocation of each zone; memory of several zones counts in the sum only."""
    for placement in admission.placements.values():
        zones = set()
        for position, zone_id in enumerate(kubelet.node_ids):
            taken = placed.setdefault(zone_id, {})
            cpus = ((placement.cpus or 0) & kubelet.topology.numa_cpus[position]).bit_count()
            taken["cpu"] = taken.get("cpu", 0) + 1000 * cpus
            count = sum(device.startswith(f"node-{zone_id}/") for device in placement.devices.get("gpu", ()))
            taken["gpu"] = taken.get("gpu", 0) + count
            if cpus or count:
                zones.add(zone_id)
        for block in placement.memory:
            if block.size:
                zones.update(block.numa)
            if len(block.numa) == 1:
                taken = placed.setdefault(block.numa[0], {})
                taken[block.type] = taken.get(block.type, 0) + block.size
        if single:
            assert len(zones) <= 1


# ---- the simplest machine


def test_cpus_beyond_allocatable_are_reserved_and_cpus_beyond_available_are_used() -> None:
    kubelet = kubelet_of(topology_of({"cpu": ("8", "7", "3")}, {"cpu": ("8", "7500m", "7500m")}))
    assert [cpus.bit_count() for cpus in kubelet.topology.numa_cpus] == [8, 8]
    assert kubelet.cpu is not None
    assert kubelet.cpu.policy.reserved == 0b1_0000_0001
    assert free_cpus(kubelet) == [3, 7]


def test_capacity_decides_how_many_numa_nodes_a_pod_needs() -> None:
    """A hint for two nodes is preferred only if no single node has the capacity, so `restricted` refuses two."""
    zone = {"cpu": ("8", "7", "7"), "memory": ("8Gi", "8Gi", "8Gi")}
    eight = pod_of("a", {"cpu": "8", "memory": "1Gi"})
    assert not kubelet_of(topology_of(zone, zone, topologyManagerPolicy="restricted")).admit(eight).admitted
    smaller = {**zone, "cpu": ("7", "7", "7")}
    assert kubelet_of(topology_of(smaller, smaller, topologyManagerPolicy="best-effort")).admit(eight).admitted


def test_memory_is_allocatable_and_not_capacity() -> None:
    """MemTotal includes hugepages, koordlet's capacity does not."""
    kubelet = kubelet_of(
        topology_of({"memory": ("8Gi", "5Gi", "4097Mi"), "hugepages-2Mi": ("2Gi", "2147483649", "1Gi")})
    )
    assert kubelet.memory is not None
    assert kubelet.memory.policy.allocatable == {"memory": (5 << 30,), "hugepages-2Mi": (2 << 30,)}
    assert kubelet.memory.tables.free == {"memory": [4097 * MI], "hugepages-2Mi": [1 << 30]}


def test_devices_are_near_their_zone_and_healthy_if_allocatable() -> None:
    kubelet = kubelet_of(topology_of({"gpu": (3, 2, 1)}, {"gpu": (1, 1, 1)}, {}, ids=(0, 2, 5)))
    table = kubelet.devices.tables["gpu"]
    assert table.names(kubelet.devices.free("gpu")) == ("node-0/0001", "node-2/0000")
    assert table.names(table.healthy) == ("node-0/0000", "node-0/0001", "node-2/0000")
    assert table.names(table.touching(0b001)) == ("node-0/0000", "node-0/0001", "node-0/0002")


def test_a_resource_no_zone_lists_is_not_checked() -> None:
    kubelet = kubelet_of(topology_of({"cpu": ("4", "4", "4")}, topologyManagerPolicy="single-numa-node"))
    assert (kubelet.cpu is not None, kubelet.memory) == (True, None)
    assert kubelet.admit(pod_of("a", {"cpu": "2", "memory": "1Ti", "gpu": 8, "hugepages-1Gi": "1Gi"})).admitted
    assert not kubelet.admit(pod_of("b", {"cpu": "3", "memory": "1Gi"})).admitted


def test_all_qos_classes_share_the_available_sum() -> None:
    zone = {"cpu": ("4", "4", "3"), "memory": ("4Gi", "4Gi", "3Gi")}
    kubelet = kubelet_of(topology_of(zone, zone))
    assert kubelet.admit(pod_of("a", requests={"cpu": "5", "memory": "2Gi"})).admitted
    assert kubelet.admit(pod_of("b", requests={"cpu": "1500m"})).reason == "OutOfcpu"
    assert kubelet.admit(pod_of("c", requests={"memory": "5Gi"})).reason == "OutOfmemory"


@pytest.mark.parametrize(
    ("named", "cpu", "memory"),
    [
        ({}, True, True),
        ({"cpuManagerPolicy": "static", "memoryManagerPolicy": "Static"}, True, True),
        ({"cpuManagerPolicy": "none"}, False, True),
        ({"memoryManagerPolicy": "None"}, True, False),
        ({"topowise.io/derived-from-sysfs": "cpu,memory"}, False, False),
    ],
)
def test_a_manager_is_on_as_the_attributes_say_else_if_a_zone_lists_its_resource(
    named: dict[str, str], cpu: bool, memory: bool
) -> None:
    zone = {"cpu": ("4", "4", "4"), "memory": ("4Gi", "4Gi", "4Gi")}
    kubelet = kubelet_of(topology_of(zone, zone, topologyManagerPolicy="single-numa-node", **named))
    assert (kubelet.cpu is not None, kubelet.memory is not None) == (cpu, memory)
    across = kubelet.admit(pod_of("a", {"cpu": "6", "memory": "6Gi"}))
    assert across.admitted == (not cpu and not memory)


def test_the_options_of_the_topology_manager_are_taken_from_the_attributes() -> None:
    zone = {"cpu": ("4", "4", "4")}
    named = {
        "topologyManagerPolicy": "restricted",
        "topologyManagerOptionPreferClosestNumaNodes": "true",
        "topologyManagerOptionPreferMostAllocatedNumaNode": "1",
    }
    settled = kubelet_of(topology_of(zone, zone, costs=True, **named)).settings.topology
    assert (settled.prefer_closest, settled.prefer_most_allocated) == (True, True)
    node_report = report.read(topology_of(zone, zone, **named))
    assert not node_report.empty.settings.topology.prefer_closest
    assert node_report.problems == (
        "costs: some are missing, expected one from each zone to each; prefer-closest-numa-nodes is ignored",
    )


@pytest.mark.parametrize(("strategy", "is_on"), [("none", False), ("most-allocated", True), ("least-allocated", False)])
def test_the_strategy_of_the_topology_manager_is_taken_if_it_is_modelled(strategy: str, is_on: bool) -> None:
    named = {"topologyManagerPolicy": "single-numa-node", "topologyManagerOptionNumaAllocationStrategy": strategy}
    node_report = report.read(topology_of({"cpu": ("4", "4", "4")}, **named))
    assert node_report.empty.settings.topology.prefer_most_allocated is is_on
    assert any("'least-allocated', expected none or most-alloc" in problem for problem in node_report.problems) is (
        strategy == "least-allocated"
    )


@pytest.mark.parametrize(
    ("text", "number"), [("16", 16), ("4096", 1024), ("1", 0), ("-3", 0), ("many", 0), ("", 0), ("9" * 30, 0)]
)
def test_the_most_numa_nodes_are_taken_as_scheduler_plugins_takes_them(text: str, number: int) -> None:
    topology = topology_of({"cpu": ("4", "4", "4")}, topologyManagerMaxNUMANodes=text)
    node_report = report.read(topology)
    assert kubelet_of(topology).settings.topology.max_numa_nodes == number
    assert any("topologyManagerMaxNUMANodes" in problem for problem in node_report.problems) == (number == 0)


def test_the_end_of_the_last_pod_frees_no_unavailable_resources() -> None:
    kubelet = kubelet_of(topology_of({"cpu": ("4", "4", "2"), "memory": ("4Gi", "4Gi", "4Gi")}))
    pod = pod_of("a", {"cpu": "2", "memory": "1Gi"})
    assert kubelet.admit(pod).admitted
    assert not kubelet.admit(pod_of("b", {"cpu": "1", "memory": "1Gi"})).admitted
    kubelet.remove("a")
    assert kubelet.admit(pod).admitted
    assert not kubelet.admit(pod_of("b", {"cpu": "1", "memory": "1Gi"})).admitted
