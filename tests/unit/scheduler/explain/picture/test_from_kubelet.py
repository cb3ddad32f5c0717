"""The picture of a kubelet's state: what the goldens of the pictures do not show."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from topowise import pods
from topowise_scheduler.explain.picture import Picture, read
from topowise_scheduler.explain.picture.contents import Device, Zone
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


def test_the_sibling_of_a_reserved_cpu_is_shared_with_full_pcpus_only() -> None:
    strict = read(kubelet({"full-pcpus-only": "true"}), {}, node="n")
    loose = read(kubelet(), {}, node="n")
    assert (states(strict.zones[0])[4], states(loose.zones[0])[4]) == ("shared", "free")


def test_shares_of_memory_add_up_to_the_total(picture: Picture) -> None:
    for zone in picture.zones:
        for memory in zone.memory:
            assert sum(share.size for share in memory.shares) == memory.total


def test_several_pods_in_a_group_have_their_sum(picture_of: PictureOf) -> None:
    picture = picture_of("summed")
    assert shares(picture.zones[0]) == [("reserved", 1, ()), ("held", 7, (0, 1))]
    assert shares(picture.zones[1]) == [("held", 5, (0, 1)), ("free", 3, ())]
    assert [block.size // GI for owner in picture.owners for block in owner.memory] == [9, 3]


def test_an_allocated_unreported_device_is_elsewhere_and_unhealthy() -> None:
    node = kubelet()
    node.hold("u", {}, {"c": Placement("app", None, False, None, (), {"x.io/gpu": ("g1", "gone")})})
    picture = read(node, {"u": "a/b"}, node="n")
    assert picture.elsewhere[0].devices == (Device("gone", is_held=True, owner=0, is_healthy=False),)
    assert picture.owners[0].devices == {"x.io/gpu": ("g1", "gone")}


def test_without_the_machine_there_are_no_distances() -> None:
    assert read(kubelet(), {}, node="n").distances is None


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
