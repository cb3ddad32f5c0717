"""The object: attributes, fingerprint, holdings, numaplacement, exclusions, legacy policies."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sandbox import machines
from topowise import attributes, fingerprint, kubeletconfig, nrt, numaplacement
from topowise.attributes import cores, devices, holdings
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter import machine, zones
from topowise_exporter.exclusions import Exclusions, PodPattern
from topowise_exporter.kubelet.allocations import (
    Allocatable,
    Allocations,
    ContainerAllocation,
    Device,
    FreeMemory,
    MemoryBlock,
    PodAllocation,
)
from topowise_exporter.publish.topology import Observation, Publishing, build, fingerprint_method

GIB = 1 << 30
STATIC = KubeletConfiguration(
    topologyManagerPolicy="single-numa-node",
    topologyManagerScope="pod",
    topologyManagerPolicyOptions={"max-allowable-numa-nodes": "16", "prefer-closest-numa-nodes": "true"},
    cpuManagerPolicy="static",
    memoryManagerPolicy="Static",
    reservedSystemCPUs="0",
)
SMALL = machines.Machine(
    nodes=(machines.Node(0, 4 * GIB, cores=2), machines.Node(1, 4 * GIB, socket=1, cores=2)),
    distances=((10, 20), (20, 10)),
)
PODS = (
    PodAllocation(
        "a",
        "one",
        (ContainerAllocation("c", frozenset({1}), (MemoryBlock("memory", (0,), GIB),), (Device("gpu", "g0", (0,)),)),),
    ),
    PodAllocation("a", "shared"),
    PodAllocation("b", "two", (ContainerAllocation("c", frozenset({2, 3})),)),
)
ALLOCATABLE = Allocatable(
    frozenset(range(1, 8)),
    (MemoryBlock("memory", (0,), 3 * GIB), MemoryBlock("memory", (1,), 3 * GIB)),
    (Device("gpu", "g0", (0,)), Device("gpu", "g1", (1,)), Device("fpga", "f", ())),
)


@pytest.fixture(scope="module")
def hardware(tmp_path_factory: pytest.TempPathFactory) -> machine.Machine:
    sysfs, procfs = machines.write_tree(SMALL, Path(tmp_path_factory.mktemp("small")))
    return machine.scan(str(sysfs), str(procfs))


def topology_of(
    hardware: machine.Machine,
    kubelet: KubeletConfiguration = STATIC,
    publishing: Publishing = Publishing(),  # noqa: B008  immutable
    excluded: Exclusions = Exclusions(),  # noqa: B008  immutable
    free_memory: FreeMemory | None = None,
) -> nrt.NodeResourceTopology:
    seen = Observation(hardware, kubelet, Allocations(ALLOCATABLE, PODS, free_memory=free_memory))
    built = build("n", seen, publishing, excluded)
    assert not built.problems
    return built.topology


def named(topology: nrt.NodeResourceTopology) -> dict[str, str]:
    return nrt.attributes_of(topology.attributes)


def test_the_standard_attributes_are_verbatim(hardware: machine.Machine) -> None:
    shown = named(topology_of(hardware))
    assert shown["topologyManagerPolicy"] == "single-numa-node"
    assert shown["topologyManagerScope"] == "pod"
    assert shown["topologyManagerMaxNUMANodes"] == "16"
    assert shown["topologyManagerOptionPreferClosestNumaNodes"] == "true"
    assert (shown["cpuManagerPolicy"], shown["memoryManagerPolicy"]) == ("static", "Static")


def test_our_attributes_are_read_back_by_their_codecs(hardware: machine.Machine) -> None:
    shown = named(topology_of(hardware))
    assert kubeletconfig.decode(shown[attributes.KUBELET_CONFIGURATION]) == STATIC
    assert [core.threads for core in cores.read(shown[attributes.CORES])] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [device.id for device in devices.read(shown[attributes.DEVICES])] == ["f", "g0", "g1"]
    first, second = holdings.read(shown[attributes.HOLDINGS])
    assert (first.name, first.containers[0].cpus, first.containers[0].devices) == ("one", "1", {"gpu": ("g0",)})
    assert second.containers[0].cpu_ids() == {2, 3}


def test_cores_name_the_cache_by_which_the_kubelet_groups_them(hardware: machine.Machine) -> None:
    uncores = {0: 0, 1: 1, 2: None, 3: 7}
    cpus = tuple(msgspec.structs.replace(cpu, uncore=uncores[cpu.core]) for cpu in hardware.cpus)
    made_of = topology_of(msgspec.structs.replace(hardware, cpus=cpus))
    assert [core.uncore for core in cores.read(named(made_of)[attributes.CORES])] == [*uncores.values()]


def test_the_version_of_the_kubelet_is_published(hardware: machine.Machine) -> None:
    for version, shown in (("v1.33.5+k3s1", "v1.33.5+k3s1"), ("", None)):
        seen = Observation(hardware, STATIC, Allocations(ALLOCATABLE), version=version)
        built = build("n", seen, Publishing(), Exclusions())
        assert nrt.attributes_of(built.topology.attributes).get(attributes.KUBELET_VERSION) == shown


def test_an_object_names_its_boot(hardware: machine.Machine, tmp_path: Path) -> None:
    assert machine.read_boot_id(str(tmp_path)) == ""
    path = tmp_path / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text("0cc4d2b4-6fd4-4bbb-a354-2ff1b5c0b5d8\n")
    for boot_id in ("", machine.read_boot_id(str(tmp_path))):
        seen = Observation(hardware, STATIC, Allocations(ALLOCATABLE), boot_id=boot_id)
        shown = nrt.attributes_of(build("n", seen, Publishing(), Exclusions()).topology.attributes)
        assert shown.get(attributes.BOOT_ID, "") == boot_id


def test_the_fingerprint_counts_exclusive_pods_or_all(hardware: machine.Machine) -> None:
    exclusive = fingerprint.of([("a", "one"), ("b", "two")])
    everyone = fingerprint.of([("a", "one"), ("a", "shared"), ("b", "two")])
    topology = topology_of(hardware)
    assert named(topology)["nodeTopologyPodsFingerprint"] == exclusive
    assert (topology.metadata.annotations or {})["topology.node.k8s.io/fingerprint"] == exclusive
    shown = named(topology_of(hardware, publishing=Publishing(fingerprint_method="all")))
    assert (shown["nodeTopologyPodsFingerprint"], shown["nodeTopologyPodsFingerprintMethod"]) == (everyone, "all")


def test_with_the_memory_manager_off_all_pods_count() -> None:
    """A Guaranteed pod with fractions of CPUs holds nothing else that could be seen."""
    nothing = Exclusions()
    assert fingerprint_method(KubeletConfiguration(), Publishing(), nothing) == "all"
    assert fingerprint_method(STATIC, Publishing(), nothing) == "with-exclusive-resources"
    assert fingerprint_method(STATIC, Publishing(), Exclusions(resources=("mem*",))) == "all"
    pages = Exclusions(resources=("hugepages-*",))
    assert fingerprint_method(STATIC, Publishing(), pages) == "with-exclusive-resources"


def test_a_device_without_a_node_makes_a_pod_exclusive_if_its_resource_is_in_a_zone(hardware: machine.Machine) -> None:
    """A scheduler only has the pod's spec and the names in the zones."""
    far = PodAllocation("a", "far", (ContainerAllocation("c", devices=(Device("gpu", "g9", ()),)),))
    apart = PodAllocation("a", "apart", (ContainerAllocation("c", devices=(Device("fpga", "f", ()),)),))
    stray = PodAllocation("a", "stray", (ContainerAllocation("c", devices=(Device("nic", "n", (7,)),)),))
    built = build(
        "n", Observation(hardware, STATIC, Allocations(ALLOCATABLE, (far, apart, stray))), Publishing(), Exclusions()
    )
    assert named(built.topology)["nodeTopologyPodsFingerprint"] == fingerprint.of([("a", "far")])


def _on_nodes(hardware: machine.Machine, first: int, second: int) -> machine.Machine:
    """The small machine with other ids."""
    ids = {0: first, 1: second}
    nodes = tuple(
        msgspec.structs.replace(
            node, id=ids[node.id], distances={ids[neighbour]: cost for neighbour, cost in node.distances.items()}
        )
        for node in hardware.nodes
    )
    return msgspec.structs.replace(hardware, nodes=nodes)


def _zones_of(hardware: machine.Machine, kubelet: KubeletConfiguration, publishing: Publishing) -> list[str]:
    built = build("n", Observation(hardware, kubelet, Allocations()), publishing, Exclusions())
    assert not built.problems
    for zone in built.topology.zones or ():
        assert nrt.is_absent(zone) is not bool(zone.resources)
    return [zone.name for zone in built.topology.zones or ()]


def test_ids_that_no_node_has_get_empty_zones_that_our_readers_pass_over(hardware: machine.Machine) -> None:
    gap = _on_nodes(hardware, 0, 3)
    assert _zones_of(gap, STATIC, Publishing()) == ["node-0", "node-1", "node-2", "node-3"]
    assert _zones_of(hardware, STATIC, Publishing()) == ["node-0", "node-1"]
    built = build("n", Observation(gap, STATIC, Allocations()), Publishing(), Exclusions())
    assert [numa_id for numa_id, _ in nrt.numa_zones(built.topology)] == [0, 3]


def test_many_empty_zones_are_only_for_the_policy_that_cannot_do_without(hardware: machine.Machine) -> None:
    wide = _on_nodes(hardware, 0, 40)
    assert len(_zones_of(wide, STATIC, Publishing())) == 41
    restricted = msgspec.structs.replace(STATIC, topologyManagerPolicy="restricted")
    assert _zones_of(wide, restricted, Publishing()) == ["node-0", "node-40"]


def test_a_node_beyond_a_kubelet_s_masks_is_left_out_with_all_that_is_on_it(hardware: machine.Machine) -> None:
    high = _on_nodes(hardware, 0, 64)
    assert _zones_of(high, STATIC, Publishing()) == ["node-0"]
    assert zones.high_nodes(high) == ("node 64",)
    built = build("n", Observation(high, STATIC, Allocations()), Publishing(), Exclusions())
    assert [cost.name for zone in built.topology.zones or () for cost in zone.costs or ()] == ["node-0"]
    assert _zones_of(_on_nodes(hardware, 0, 63), STATIC, Publishing())[-1] == "node-63"


def test_numaplacement_names_the_node_of_each_container(hardware: machine.Machine) -> None:
    topology = topology_of(hardware)
    metadata = named(topology)[numaplacement.METADATA_ATTRIBUTE]
    vectors = {
        numa_id: shown[numaplacement.VECTOR_ATTRIBUTE]
        for numa_id, zone in nrt.numa_zones(topology)
        if numaplacement.VECTOR_ATTRIBUTE in (shown := nrt.attributes_of(zone.attributes))
    }
    read = numaplacement.resolve(numaplacement.decode(metadata, vectors), [("a", "one", "c"), ("b", "two", "c")])
    assert read == {("a", "one", "c"): 0, ("b", "two", "c"): 1}


def test_a_container_on_two_nodes_leaves_numaplacement_out_and_says_so(hardware: machine.Machine) -> None:
    astride = PodAllocation("a", "astride", (ContainerAllocation("c", frozenset({1, 2})),))
    seen = Observation(hardware, STATIC, Allocations(ALLOCATABLE, (astride,)))
    built = build("n", seen, Publishing(), Exclusions())
    assert numaplacement.METADATA_ATTRIBUTE not in named(built.topology)
    assert "a/astride/c" in built.problems[0]


def test_groups_of_the_memory_manager_are_published_per_zone(hardware: machine.Machine) -> None:
    free_memory = FreeMemory({(0, "memory"): GIB, (1, "memory"): GIB}, {0: 2, 1: 1}, {0: (0, 1), 1: (0, 1)})
    zone = nrt.numa_zones(topology_of(hardware, free_memory=free_memory))[0][1]
    shown = nrt.attributes_of(zone.attributes)
    assert (shown[attributes.MEMORY_CELLS], shown[attributes.MEMORY_ASSIGNMENTS]) == ("0-1", "2")


def test_an_excluded_resource_is_nowhere(hardware: machine.Machine) -> None:
    topology = topology_of(hardware, excluded=Exclusions(resources=("gpu", "memory")))
    resources = {resource.name for zone in topology.zones or () for resource in zone.resources or ()}
    assert resources == {"cpu"}
    assert "g0" not in named(topology)[attributes.HOLDINGS]
    assert "gpu" not in named(topology)[attributes.DEVICES]


def test_an_excluded_pod_is_as_if_it_did_not_exist(hardware: machine.Machine) -> None:
    excluded = Exclusions(pods=(PodPattern(namespace="b"),))
    topology = topology_of(hardware, excluded=excluded)
    assert named(topology)["nodeTopologyPodsFingerprint"] == fingerprint.of([("a", "one")])
    cpu = next(resource for resource in nrt.numa_zones(topology)[1][1].resources or () if resource.name == "cpu")
    assert cpu.available == cpu.allocatable


def test_leftovers_of_init_containers_are_listed_by_uid_and_absent_devices_are_not(hardware: machine.Machine) -> None:
    allocations = Allocations(
        ALLOCATABLE,
        PODS,
        unlisted={"u": frozenset({4})},
        unlisted_devices={"u": (Device("gpu", "g1", (1,)),), "v": (Device("fpga", "f", ()),)},
        absent=(Device("nic", "n0", (0,)), Device("nic", "n1", (0,))),
    )
    built = build("n", Observation(hardware, STATIC, allocations), Publishing(), Exclusions())
    assert not built.problems
    shown = named(built.topology)
    left = [pod for pod in holdings.read(shown[attributes.HOLDINGS]) if not pod.namespace]
    assert left == [
        holdings.Pod("", "u", (holdings.Container("", "4", (), {"gpu": ("g1",)}),)),
        holdings.Pod("", "v", (holdings.Container("", "", (), {"fpga": ("f",)}),)),
    ]
    assert devices.names(shown[attributes.DEVICES]) == {"fpga", "gpu", "nic"}
    assert all(device.resource != "nic" for device in devices.read(shown[attributes.DEVICES]))
    amounts = built.accounts.amounts
    assert amounts[0]["nic"] == zones.Amount(2, 0, 0)
    assert amounts[1]["gpu"] == zones.Amount(1, 1, 0)
    excluded = Exclusions(resources=("nic", "gpu"))
    built = build("n", Observation(hardware, STATIC, allocations), Publishing(), excluded)
    assert devices.names(named(built.topology)[attributes.DEVICES]) == {"fpga"}
    assert "g1" not in named(built.topology)[attributes.HOLDINGS]
    assert "nic" not in built.accounts.amounts[0]
