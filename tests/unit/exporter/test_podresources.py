"""What the kubelet says over podresources, stripped of its traps; and a kubelet that cannot be asked."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from exporter_setup import Clock
from sandbox.kubelet import podresources as server
from sandbox.kubelet.holdings import Block, ContainerHoldings, NodeHoldings, PodHoldings
from topowise.attributes.devices import NOWHERE
from topowise.errors import SourceError
from topowise.wire import podresources_pb2 as pb
from topowise_exporter.kubelet.allocations import Device, MemoryBlock, PodAllocation
from topowise_exporter.kubelet.podresources import PodDecoder, PodResources, decode_allocatable


def topology(*nodes: int) -> pb.TopologyInfo:
    return pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes])


def decode_pods(answer: pb.ListPodResourcesResponse) -> tuple[PodAllocation, ...]:
    return PodDecoder("/socket").decode(answer.SerializeToString())


def test_two_pods_with_the_same_name_and_allocation_are_two() -> None:
    twin = pb.PodResources(namespace="a", name="p")
    assert len(decode_pods(pb.ListPodResourcesResponse(pod_resources=[twin, twin]))) == 2


def test_what_has_not_changed_stays_the_same_object() -> None:
    decoder = PodDecoder("/socket")
    first, two = pb.PodResources(namespace="a", name="one"), pb.PodResources(namespace="a", name="two")
    before = decoder.decode(pb.ListPodResourcesResponse(pod_resources=[two, first]).SerializeToString())
    assert decoder.decode(pb.ListPodResourcesResponse(pod_resources=[first, two]).SerializeToString()) is before
    two.containers.add(name="c", cpu_ids=[1])
    after = decoder.decode(pb.ListPodResourcesResponse(pod_resources=[first, two]).SerializeToString())
    assert after[0] is before[0]
    assert after[1].cpus == {1}


def test_an_answer_that_is_no_list_is_named() -> None:
    with pytest.raises(SourceError, match="/socket"):
        PodDecoder("/socket").decode(b"\xff\xff")


def test_a_device_listed_once_per_node_is_a_device_with_both_nodes() -> None:
    entries = [
        pb.ContainerDevices(resource_name="gpu", device_ids=["a"], topology=topology(1)),
        pb.ContainerDevices(resource_name="gpu", device_ids=["b"]),
        pb.ContainerDevices(resource_name="gpu", device_ids=["a"], topology=topology(0)),
        pb.ContainerDevices(resource_name="gpu", device_ids=["c"], topology=topology(-1)),
        pb.ContainerDevices(resource_name="gpu", device_ids=["d"], topology=topology(1 << 40)),
    ]
    read = decode_allocatable(pb.AllocatableResourcesResponse(devices=entries, cpu_ids=[3, 1]))
    assert [(device.id, device.nodes) for device in read.devices] == [
        ("a", (0, 1)),
        ("b", ()),
        ("c", (NOWHERE,)),
        ("d", (NOWHERE,)),
    ]
    assert read.cpus == {1, 3}


def test_pod_level_and_container_assignments_are_united() -> None:
    block = pb.ContainerMemory(memory_type="memory", size=5, topology=topology(0))
    pod = pb.PodResources(
        name="p",
        namespace="n",
        cpu_ids=[1, 2, 3],
        memory=[pb.ContainerMemory(memory_type="memory", size=9, topology=topology(0))],
        containers=[pb.ContainerResources(name="c", cpu_ids=[2, 4], memory=[block])],
    )
    (read,) = decode_pods(pb.ListPodResourcesResponse(pod_resources=[pod]))
    assert read.cpus == {1, 2, 3, 4}
    assert read.memory == (MemoryBlock("memory", (0,), 9),)


def test_pods_come_sorted_and_blocks_of_nothing_are_dropped() -> None:
    pods = [
        pb.PodResources(namespace="b", name="a"),
        pb.PodResources(
            namespace="a",
            name="z",
            containers=[pb.ContainerResources(memory=[pb.ContainerMemory(memory_type="memory", size=0)])],
        ),
    ]
    read = decode_pods(pb.ListPodResourcesResponse(pod_resources=pods))
    assert [(pod.namespace, pod.name) for pod in read] == [("a", "z"), ("b", "a")]
    assert read[0].memory == ()


@pytest.mark.parametrize(
    ("pod", "holds"),
    [
        (pb.PodResources(), False),
        (pb.PodResources(containers=[pb.ContainerResources(cpu_ids=[1])]), True),
        (
            pb.PodResources(
                containers=[pb.ContainerResources(devices=[pb.ContainerDevices(resource_name="g", device_ids=["x"])])]
            ),
            False,
        ),
        (
            pb.PodResources(memory=[pb.ContainerMemory(memory_type="memory", size=1, topology=topology(0))]),
            True,
        ),
    ],
)
def test_cpus_and_memory_of_a_numa_node_are_distinct_from_devices(pod: pb.PodResources, holds: bool) -> None:
    (read,) = decode_pods(pb.ListPodResourcesResponse(pod_resources=[pod]))
    assert read.holds_cpus_or_memory is holds


HOLDINGS = NodeHoldings(
    allocatable_cpus=frozenset({1, 2, 3}),
    allocatable_memory=(Block("memory", (0,), 1 << 30),),
    shared_cpus=frozenset({0, 3}),
    device_nodes={("gpu", "a"): (0, 1), ("gpu", "b"): None},
    pods=(
        PodHoldings(
            "uid",
            "ns",
            "p",
            (
                ContainerHoldings("setup", "init", frozenset({3})),
                ContainerHoldings("main", "app", frozenset({1, 2}), devices={"gpu": ("a",)}),
            ),
        ),
    ),
)


async def test_a_real_socket_is_asked_and_asked_again_after_the_kubelet_restarts(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    running = await server.start(socket, lambda: HOLDINGS)
    async with PodResources(str(socket), timeout=2) as client:
        (pod,) = await client.pods()
        assert (pod.cpus, pod.devices) == (frozenset({1, 2}), (Device("gpu", "a", (0, 1)),))
        assert (await client.allocatable()).cpus == {1, 2, 3}
        await running.stop(None)
        with pytest.raises(SourceError) as gone:
            await client.pods()
        assert str(socket) in str(gone.value)
        running = await server.start(socket, lambda: HOLDINGS)
        assert len(await client.pods()) == 1
    await running.stop(None)


async def test_what_is_allocatable_is_asked_again_after_its_time_a_restart_and_an_event(tmp_path: Path) -> None:
    socket, clock, current = tmp_path / "kubelet.sock", Clock(), HOLDINGS
    running = await server.start(socket, lambda: current)
    async with PodResources(str(socket), timeout=2, clock=clock) as client:

        async def allocatable(*cpus: int) -> frozenset[int]:
            nonlocal current
            current = msgspec.structs.replace(HOLDINGS, allocatable_cpus=frozenset(cpus))
            return (await client.allocatable()).cpus

        assert await allocatable(1) == {1}
        clock.now += 4.9
        assert await allocatable(2) == {1}
        clock.now += 0.2
        assert await allocatable(2) == {2}
        client.expire()
        assert await allocatable(3) == {3}
        await running.stop(None)
        running = await server.start(socket, lambda: current)
        assert await allocatable(4) == {4}
        await running.stop(None)
        with pytest.raises(SourceError):
            await client.allocatable()


async def test_a_missing_socket_is_said_to_be_missing_at_once(tmp_path: Path) -> None:
    async with PodResources(str(tmp_path / "none.sock")) as client:
        with pytest.raises(SourceError, match="no such socket"):
            await client.pods()


async def test_a_socket_that_never_answers_is_given_up_in_time(tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    mute = await asyncio.start_unix_server(hang, str(socket))
    async with mute, PodResources(str(socket), timeout=0.3) as client:
        async with asyncio.timeout(3):
            with pytest.raises(SourceError, match=r"DEADLINE_EXCEEDED|UNAVAILABLE"):
                await client.pods()


async def test_a_socket_that_cannot_even_be_looked_for_is_named(tmp_path: Path) -> None:
    # As root, a name that is too long; for other users a directory without search permission is the same.
    async with PodResources(str(tmp_path / ("s" * 300))) as client:
        with pytest.raises(SourceError, match="File name too long"):
            await client.pods()
