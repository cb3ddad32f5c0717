"""Numatopology has Volcano's JSON, and equal content is recognised however it is written."""

import json

import msgspec
import pytest

from topowise import nrt, numatopology
from topowise.numatopology import ContainerAllocation, CpuInfo, Numatopology, PodAllocation, ResourceInfo

# As resource-exporter writes it: no zeros in cpuDetail, everything in order.
WRITTEN = {
    "apiVersion": "nodeinfo.volcano.sh/v1alpha1",
    "kind": "Numatopology",
    "metadata": {"name": "node1", "annotations": {"timestamp": "1785800000"}},
    "spec": {
        "policies": {"CPUManagerPolicy": "static", "TopologyManagerPolicy": "single-numa-node"},
        "resReserved": {"cpu": "500m"},
        "numares": {"cpu": {"allocatable": "0-3,8", "capacity": 16}},
        "cpuDetail": {"0": {}, "1": {"core": 1}, "8": {"numa": 1, "socket": 1, "core": 8}},
        "podAllocations": [
            {
                "name": "p",
                "namespace": "ns",
                "containerAllocations": [{"name": "c", "allocations": {"cpu": "4-7"}}],
            }
        ],
    },
}
POD = PodAllocation(name="p", namespace="ns", containerAllocations=(ContainerAllocation("c", {"cpu": "4-7"}),))


def topology_of(
    *pods: PodAllocation, free: str = "0-3,8", reserved: str = "500m", owner: nrt.OwnerReference | None = None
) -> Numatopology:
    return numatopology.new(
        "node1",
        policies={"TopologyManagerPolicy": "single-numa-node", "CPUManagerPolicy": "static"},
        reserved={"cpu": reserved},
        resources={"cpu": ResourceInfo(free, 16)},
        cpus={8: CpuInfo(numa=1, socket=1, core=8), 1: CpuInfo(core=1), 0: CpuInfo()},
        pods=pods,
        owner=owner,
    )


def test_an_object_is_written_as_volcanos_exporter_writes_it() -> None:
    written = msgspec.json.encode(numatopology.stamped(topology_of(POD), 1785800000))
    assert json.loads(written) == WRITTEN
    assert list(json.loads(written)["spec"]["cpuDetail"]) == ["0", "1", "8"]


def test_an_object_of_volcanos_exporter_is_read() -> None:
    read = numatopology.decode(json.dumps(WRITTEN).encode())
    assert read == numatopology.stamped(topology_of(POD), 1785800000)


def test_lists_and_maps_that_are_null_or_absent_say_nothing() -> None:
    empty = numatopology.decode(b'{"metadata":{"name":"n"}}')
    null = numatopology.decode(
        b'{"metadata":{"name":"n"},"spec":{"policies":null,"resReserved":null,"numares":null,"cpuDetail":null,'
        b'"podAllocations":null}}'
    )
    assert numatopology.same_content(empty, null)
    assert not numatopology.same_content(empty, topology_of())


def test_pods_and_containers_are_sorted() -> None:
    containers = (ContainerAllocation("b", {"cpu": "1"}), ContainerAllocation("a", {"cpu": "0"}))
    pods = topology_of(
        PodAllocation(name="a", namespace="z"),
        PodAllocation(name="b", namespace="a", containerAllocations=containers),
        PodAllocation(name="a", namespace="a"),
    ).spec.podAllocations
    assert pods is not None
    assert [(pod.namespace, pod.name) for pod in pods] == [("a", "a"), ("a", "b"), ("z", "a")]
    assert [container.name for container in pods[1].containerAllocations or ()] == ["a", "b"]


def test_the_timestamp_makes_no_difference() -> None:
    assert numatopology.same_content(numatopology.stamped(topology_of(), 1), numatopology.stamped(topology_of(), 2))


def test_order_and_spelling_make_no_difference() -> None:
    second_pod = PodAllocation(name="q", namespace="ns")
    again = PodAllocation(
        name="p", namespace="ns", containerAllocations=(ContainerAllocation("c", {"cpu": "4,5,6,7"}),)
    )
    reordered = msgspec.structs.replace(topology_of().spec, podAllocations=(second_pod, again))
    first = topology_of(POD, second_pod)
    second = msgspec.structs.replace(topology_of(free="8,0,1-3", reserved="0.5"), spec=reordered)
    assert numatopology.same_content(first, second)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(topology_of(POD, free="0-3"), id="free CPUs"),
        pytest.param(topology_of(POD, free="0-3,x"), id="damaged free CPUs"),
        pytest.param(topology_of(POD, reserved="1"), id="reserved"),
        pytest.param(topology_of(POD, reserved="some"), id="damaged quantity"),
        pytest.param(topology_of(), id="pods"),
        pytest.param(topology_of(msgspec.structs.replace(POD, uid="u")), id="uid"),
    ],
)
def test_what_differs_is_seen_even_where_it_is_damaged(changed: Numatopology) -> None:
    assert not numatopology.same_content(topology_of(POD), changed)
    assert numatopology.same_content(changed, changed)


def test_values_of_other_resources_are_quantities() -> None:
    first = PodAllocation(name="p", containerAllocations=(ContainerAllocation("c", {"memory": "1024Mi"}),))
    second = PodAllocation(name="p", containerAllocations=(ContainerAllocation("c", {"memory": "1Gi"}),))
    assert numatopology.same_content(topology_of(first), topology_of(second))


def test_the_collection_is_volcanos() -> None:
    assert numatopology.PATH == "/apis/nodeinfo.volcano.sh/v1alpha1/numatopologies"
