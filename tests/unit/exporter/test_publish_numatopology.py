"""The node as Volcano's numa-aware plugin sees it: free CPUs by id, cores that are unique on the machine."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from topowise import nrt
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.allocations import Allocatable, Allocations, ContainerAllocation, PodAllocation
from topowise_exporter.machine import Machine
from topowise_exporter.machine.inventory import Cpu
from topowise_exporter.publish import numatopology
from topowise_exporter.publish.numatopology import Numatopology, observed, same
from topowise_exporter.publish.topology import Observation

CRD = Path(__file__).resolve().parents[3] / "charts/topowise/crds/numatopologies.yaml"
OWNER = nrt.OwnerReference(apiVersion="v1", kind="Node", name="n1", uid="u")


def cpu(number: int, node: int, socket: int, core: int) -> Cpu:
    return Cpu(
        id=number,
        node=node,
        socket=socket,
        die=0,
        core=core,
        core_id=core % 2,
        threads=(core, core + 4),
        l3=None,
        l3_id=None,
        uncore=None,
        kind="",
    )


def machine(*cpus: Cpu) -> Machine:
    online = tuple(cpu.id for cpu in cpus)
    return Machine(nodes=(), cpus=cpus, pci=(), online=online, present=online, possible=online, offline=(), isolated=())


# Two cores of two threads on each of two sockets; core_id repeats, and the second NUMA node has the id 8.
TWO_SOCKETS = machine(*(cpu(i, node=8 if i % 4 > 1 else 0, socket=i % 4 // 2, core=i % 4) for i in range(8)))


def built(
    on: Machine = TWO_SOCKETS,
    *pods: PodAllocation,
    reserved_cpu: str = "1",
    reserved_cpus: str = "",
    allocatable: frozenset[int] = frozenset(),
    used: frozenset[int] = frozenset(),
    owner: nrt.OwnerReference | None = None,
) -> Numatopology:
    kubelet = KubeletConfiguration(
        cpuManagerPolicy="static",
        topologyManagerPolicy="restricted",
        systemReserved={"cpu": reserved_cpu},
        reservedSystemCPUs=reserved_cpus,
    )
    allocations = Allocations(Allocatable(cpus=allocatable), pods, unlisted={"u": used})
    return observed("n1", Observation(on, kubelet, allocations), Exclusions(), owner)


def pod(name: str, container: str = "", *cpus: int) -> PodAllocation:
    containers = (ContainerAllocation(container, frozenset(cpus)),) if cpus else ()
    return PodAllocation("ns", name, containers)


def written(topology: Numatopology) -> Any:
    return msgspec.json.decode(msgspec.json.encode(topology))


def test_every_online_cpu_has_its_real_node_its_socket_and_a_core_that_is_unique() -> None:
    assert built().spec["cpuDetail"] == {
        "0": {},
        "1": {"core": 1},
        "2": {"numa": 8, "socket": 1, "core": 2},
        "3": {"numa": 8, "socket": 1, "core": 3},
        "4": {},
        "5": {"core": 1},
        "6": {"numa": 8, "socket": 1, "core": 2},
        "7": {"numa": 8, "socket": 1, "core": 3},
    }


def test_policies_and_capacity_are_the_nodes() -> None:
    spec = built().spec
    assert spec["policies"] == {"CPUManagerPolicy": "static", "TopologyManagerPolicy": "restricted"}
    assert spec["numares"]["cpu"]["capacity"] == 8
    # What the kernel does not know is zero.
    assert built(machine(cpu(0, node=-1, socket=-1, core=0))).spec["cpuDetail"] == {"0": {}}


ALL, SIX = frozenset(range(8)), frozenset({1, 2, 3, 5, 6, 7})


@pytest.mark.parametrize(
    ("pods", "options", "expected"),
    [
        pytest.param([("c", 1, 5)], {"allocatable": SIX, "used": frozenset({2})}, "3,6-7", id="without a pod"),
        pytest.param([], {"reserved_cpus": "0,4"}, "1-3,5-7", id="reserved CPUs"),
        pytest.param([], {"reserved_cpus": "0,4", "allocatable": ALL}, "1-3,5-7", id="reserved and allocatable"),
        pytest.param([], {"allocatable": frozenset({1, 99})}, "1", id="not online"),
        pytest.param([], {"allocatable": frozenset({99})}, "", id="none online"),
    ],
)
def test_free_cpus_are_allocatable_cpus_without_a_pod(
    pods: list[tuple[Any, ...]], options: dict[str, Any], expected: str
) -> None:
    topology = built(TWO_SOCKETS, *(pod("p", *containers) for containers in pods), **options)
    assert topology.spec["numares"]["cpu"].get("allocatable", "") == expected


@pytest.mark.parametrize(
    ("named", "allocatable", "expected"),
    [
        pytest.param("3", frozenset(), "0", id="named CPUs are gone already"),
        pytest.param("", frozenset(range(1, 8)), "0", id="the kubelet's choice is gone already"),
        pytest.param("", frozenset(), "500m", id="nobody says which CPUs"),
    ],
)
def test_the_reader_is_left_to_reserve_only_what_is_not_left_out(
    named: str, allocatable: frozenset[int], expected: str
) -> None:
    topology = built(reserved_cpu="500m", reserved_cpus=named, allocatable=allocatable)
    assert topology.spec["resReserved"] == {"cpu": expected}


def test_pods_show_the_exclusive_cpus_of_each_container_in_order() -> None:
    containers = (ContainerAllocation("z", frozenset({5})), ContainerAllocation("a", frozenset({1, 2, 99})))
    # Volcano waits until all that it sent are named, fractions of CPUs or not.
    topology = built(TWO_SOCKETS, PodAllocation("ns", "b", containers), pod("shared"), pod("a", "c", 6, 7))
    assert written(topology)["spec"]["podAllocations"] == [
        {"name": "a", "namespace": "ns", "containerAllocations": [{"name": "c", "allocations": {"cpu": "6-7"}}]},
        {
            "name": "b",
            "namespace": "ns",
            "containerAllocations": [
                {"name": "a", "allocations": {"cpu": "1-2"}},
                {"name": "z", "allocations": {"cpu": "5"}},
            ],
        },
        {"name": "shared", "namespace": "ns"},
    ]


def test_an_unchanged_node_is_the_same_whenever_it_was_written() -> None:
    assert built().metadata.annotations is None
    assert same(numatopology.stamped(built(owner=OWNER), 1), built(owner=OWNER))


def test_an_object_as_the_api_server_returns_it_is_the_same() -> None:
    """The numbers, the omitted zeros and the order survive a write and a read."""
    topology = built(TWO_SOCKETS, pod("b", "c", 7), pod("a"), allocatable=frozenset({1, 7}), owner=OWNER)
    stored = numatopology.decode(msgspec.json.encode(numatopology.stamped(topology, 1785800000)))
    assert stored.metadata.annotations == {"timestamp": "1785800000"}
    assert same(stored, topology)


def test_what_is_the_same() -> None:
    other_owner = nrt.OwnerReference(apiVersion="apps/v1", kind="DaemonSet", name="d", uid="v")
    owned = built(owner=OWNER)
    metadata = msgspec.structs.replace(owned.metadata, ownerReferences=(other_owner, OWNER))
    assert same(msgspec.structs.replace(owned, metadata=metadata), owned)
    assert not same(built(), owned)
    assert not same(built(), built(used=frozenset({7})))


def test_the_definition_names_every_field_that_is_written() -> None:
    definition = yaml.safe_load(CRD.read_text())
    names, version = definition["spec"]["names"], definition["spec"]["versions"][0]
    assert f"{definition['spec']['group']}/{version['name']}" == numatopology.API_VERSION
    assert names["kind"] == numatopology.KIND
    assert f"/apis/{numatopology.API_VERSION}/{names['plural']}" == numatopology.PATH
    topology = built(TWO_SOCKETS, pod("p", "c", 7))
    check(written(topology)["spec"], version["schema"]["openAPIV3Schema"]["properties"]["spec"])


def check(value: Any, schema: dict[str, Any]) -> None:
    kind = {"object": dict, "array": list, "string": str, "integer": int}[schema["type"]]
    assert isinstance(value, kind)
    if isinstance(value, dict):
        for key, part in value.items():
            check(part, schema.get("additionalProperties") or schema["properties"][key])
    elif isinstance(value, list):
        for part in value:
            check(part, schema["items"])
