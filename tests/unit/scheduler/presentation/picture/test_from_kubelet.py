"""The picture of a kubelet's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from topowise import pods
from topowise_scheduler.kubelet import (
    Core,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    Machine,
    MemoryReservation,
    NumaNode,
    Placement,
)
from topowise_scheduler.kubelet import Device as PluginDevice
from topowise_scheduler.presentation.picture import Picture, read
from topowise_scheduler.presentation.picture.contents import Device, Share, Zone

GI = 1 << 30
PictureOf = Callable[[str], Picture]


def kubelet(options: dict[str, str] | None = None, *, gates: dict[str, bool] | None = None) -> Kubelet:
    """A NUMA node with four cores of two threads, CPU 0 reserved."""
    cores = tuple(Core(0, (core, core + 4)) for core in range(4))
    gpus = DevicePlugin("x.io/gpu", (PluginDevice("g0", (0,)), PluginDevice("g1", (0,))))
    machine = Machine(numa=(NumaNode(0, 16 * GI, cores),), devices=(gpus,))
    configuration = KubeletConfiguration(
        topologyManagerPolicy="restricted",
        topologyManagerScope="pod",
        cpuManagerPolicy="static",
        cpuManagerPolicyOptions=options,
        reservedSystemCPUs="0",
        memoryManagerPolicy="Static",
        systemReserved={"cpu": "1", "memory": "1Gi"},
        reservedMemory=(MemoryReservation(0, {"memory": "1Gi"}),),
        featureGates=gates,
    )
    return Kubelet(machine, configuration, predicates=False)


def states(zone: Zone) -> dict[int | None, str]:
    return {thread.id: thread.state for thread in zone.threads}


def shares(zone: Zone, at: int = 0) -> list[tuple[str, int, tuple[int, ...]]]:
    return [(share.kind, share.size // GI, share.owners) for share in zone.memory[at].shares]


def owned(picture: Picture, zone: int, owner: int) -> set[int | None]:
    return {thread.id for thread in picture.zones[zone].threads if thread.owner == owner}


def test_cpus_are_exclusive_reserved_or_free(picture_of: PictureOf) -> None:
    picture = picture_of("two-zones")
    names = [owner.name for owner in picture.owners]
    assert names == [
        "default/database-0",
        "default/router",
        "default/web-6d4b75cb6d-hx7xk",
        "ml/trainer-rank-0",
        "ml/trainer-rank-1",
    ]
    assert owned(picture, 0, names.index("default/router")) == {1, 2, 3, 4, 33, 34, 35, 36}
    assert Counter(states(picture.zones[0]).values()) == {"exclusive": 18, "free": 12, "reserved": 2}
    assert picture.other_pods == 1


def test_cores_contain_their_threads_and_caches_their_cores(picture_of: PictureOf) -> None:
    (socket,) = picture_of("large").zones[5].sockets
    assert socket.id == 1
    assert [cache.id for cache in socket.caches] == [20, 21, 22, 23]
    assert [thread.id for thread in socket.caches[0].cores[0].threads] == [160, 416]


def test_the_sibling_of_a_reserved_cpu_is_shared_with_full_pcpus_only() -> None:
    strict = read(kubelet({"full-pcpus-only": "true"}), {}, node="n")
    loose = read(kubelet(), {}, node="n")
    assert (states(strict.zones[0])[4], states(loose.zones[0])[4]) == ("shared", "free")


def test_without_a_cpu_manager_all_cpus_are_shared(picture_of: PictureOf) -> None:
    assert set(states(picture_of("tiny").zones[0]).values()) == {"shared"}


def test_shares_of_memory_add_up_to_the_total(picture: Picture) -> None:
    for zone in picture.zones:
        for memory in zone.memory:
            assert sum(share.size for share in memory.shares) == memory.total


def test_memory_in_shares(picture_of: PictureOf) -> None:
    zone = picture_of("two-zones").zones[0]
    assert [memory.type for memory in zone.memory] == ["memory", "hugepages-2Mi", "hugepages-1Gi"]
    # 512 MiB of the third pod are 0 GiB here, and 14.5 GiB are free.
    assert shares(zone) == [
        ("reserved", 1, ()),
        ("hugepages", 8, ()),
        ("held", 16, (0,)),
        ("held", 4, (1,)),
        ("held", 0, (2,)),
        ("held", 20, (3,)),
        ("free", 14, ()),
    ]
    assert shares(zone, 2) == [("held", 2, (0,)), ("free", 2, ())]


def test_memory_of_a_group(picture_of: PictureOf) -> None:
    first, second, third = picture_of("group").zones
    assert (first.group, second.group, third.group) == ((0, 1), (0, 1), ())
    assert shares(first) == [("reserved", 1, ()), ("held", 7, (1,))]
    assert shares(second) == [("held", 3, (1,)), ("free", 5, ())]


def test_several_pods_in_a_group_have_their_sum(picture_of: PictureOf) -> None:
    picture = picture_of("summed")
    assert shares(picture.zones[0]) == [("reserved", 1, ()), ("held", 7, (0, 1))]
    assert shares(picture.zones[1]) == [("held", 5, (0, 1)), ("free", 3, ())]
    assert [block.size // GI for owner in picture.owners for block in owner.memory] == [9, 3]


def test_memory_without_a_manager_is_shared(picture_of: PictureOf) -> None:
    (memory,) = picture_of("tiny").zones[0].memory
    assert (memory.total, memory.shares, memory.free) == (4 * GI, (Share("shared", 4 * GI),), None)


def test_numa_nodes_without_cpus_or_memory(picture_of: PictureOf) -> None:
    _, empty, far = picture_of("odd").zones
    assert (empty.memory[0].total, far.sockets, far.id) == (0, (), 4)


def test_devices_are_in_their_numa_nodes(picture_of: PictureOf) -> None:
    picture = picture_of("odd")
    assert picture.zones[0].devices[0].devices == (Device("0000:3b:00.0", zones=(0,)),)
    license_, link = picture.elsewhere
    assert [device.zones for device in license_.devices] == [()] * 3
    assert link.devices[0] == Device("nvlink-0", is_held=True, owner=1, zones=(0, 1))
    broken = picture_of("two-zones").zones[1].devices[0].devices[3]
    assert (broken.is_healthy, broken.is_free) == (False, False)


def test_an_allocated_unreported_device_is_elsewhere_and_unhealthy() -> None:
    node = kubelet()
    node.hold("u", {}, {"c": Placement("app", None, False, None, (), {"x.io/gpu": ("g1", "gone")})})
    picture = read(node, {"u": "a/b"}, node="n")
    assert picture.elsewhere[0].devices == (Device("gone", is_held=True, owner=0, is_healthy=False),)
    assert picture.owners[0].devices == {"x.io/gpu": ("g1", "gone")}


def test_distances_follow_the_order_of_the_numa_nodes(picture_of: PictureOf) -> None:
    assert picture_of("odd").distances == ((10, 21, 14), (21, 10, 24), (14, 24, 10))


def test_without_the_machine_there_are_no_distances() -> None:
    assert read(kubelet(), {}, node="n").distances is None


def test_counts_have_no_ids_and_the_same_numbers(picture_of: PictureOf) -> None:
    exact, counts = picture_of("large"), picture_of("large-counts")
    for exact_zone, zone in zip(exact.zones, counts.zones, strict=True):
        assert set(states(zone)) == {None}
        assert Counter((t.state, t.owner) for t in exact_zone.threads) == Counter(
            (t.state, t.owner) for t in zone.threads
        )
        assert {device.id for resource in zone.devices for device in resource.devices} == {None}
        assert exact_zone.memory == zone.memory
    assert [owner.cpu_count for owner in exact.owners] == [owner.cpu_count for owner in counts.owners]
    assert not any(owner.cpus or owner.devices for owner in counts.owners)


@pytest.mark.parametrize(("precision", "names", "owner"), [("exact", ["u"], 0), ("counts", [], None)])
def test_a_pod_without_a_name(precision: str, names: list[str], owner: int | None) -> None:
    node = kubelet()
    node.hold("u", {}, {"c": Placement("app", None, False, 0b110)})
    picture = read(node, {}, node="n", precision=precision)  # type: ignore[arg-type]
    assert [entry.name for entry in picture.owners] == names
    threads = [thread for thread in picture.zones[0].threads if thread.state == "exclusive"]
    assert [thread.owner for thread in threads] == [owner, owner]


def test_pod_level_resources_count_once() -> None:
    node = kubelet(gates={"PodLevelResourceManagers": True})
    level = pods.Resources(requests={"cpu": "4", "memory": "4Gi"}, limits={"cpu": "4", "memory": "4Gi"})
    own = pods.Resources(limits={"cpu": "1", "memory": "1Gi"})
    containers = (pods.Container("exclusive", own), pods.Container("one"), pods.Container("other"))
    pod = pods.Pod(pods.Metadata("p", "a", "u"), pods.Spec(containers=containers, resources=level))
    assert node.admit(pod).admitted
    picture = read(node, {"u": "a/p"}, node="n")
    assert picture.owners[0].cpu_count == 4
    assert shares(picture.zones[0]) == [("reserved", 1, ()), ("held", 4, (0,)), ("free", 11, ())]


def test_pods_are_sorted_by_their_numbers() -> None:
    node = kubelet()
    for number in (10, 2, 1):
        node.hold(f"a/p-{number}", {}, {"c": Placement("app", None, False, 1 << number % 8)})
    assert [owner.name for owner in read(node, {}, node="n").owners] == ["a/p-1", "a/p-2", "a/p-10"]


def test_a_removed_pod_is_not_in_the_picture() -> None:
    node = kubelet()
    node.hold("u", {}, {"c": Placement("app", None, False, 0b110, (), {"x.io/gpu": ("g0",)})})
    node.remove("u")
    picture = read(node, {"u": "a/b"}, node="n")
    assert picture.owners == ()
    assert not any(thread.state == "exclusive" for thread in picture.zones[0].threads)
    assert all(device.is_free for device in picture.zones[0].devices[0].devices)
