"""A pod is published whole or not at all: what proves the end of its admission, and what happens without proof."""

from __future__ import annotations

from typing import Any

import pytest

from topowise.checkpoints import CpuState, MemoryState
from topowise_exporter.kubelet.allocations import ContainerAllocation, Device, MemoryBlock, PodAllocation
from topowise_exporter.kubelet.device_checkpoint import DeviceState
from topowise_exporter.kubelet.pods_in_admission import AT_MOST_S, QUIET_S, STUCK_S, Admissions, Sorted, States

GPU = Device("gpu", "g0", (0,))
MEMORY = MemoryBlock("memory", (0,), 1 << 30)


def container(name: str, *cpus: int, memory: bool = False, devices: tuple[Device, ...] = ()) -> ContainerAllocation:
    return ContainerAllocation(name, frozenset(cpus), (MEMORY,) if memory else (), devices)


def pod(name: str, *containers: ContainerAllocation) -> PodAllocation:
    return PodAllocation("ns", name, containers)


def states(**pods: tuple[ContainerAllocation, ...]) -> States:
    """As the managers write it: each has its own part of each pod."""

    def written(field: str) -> Any:
        return {uid: {c.name: getattr(c, field) for c in listed if getattr(c, field)} for uid, listed in pods.items()}

    cpus, memory, devices = map(written, ("cpus", "memory", "devices"))
    return States(CpuState(frozenset(), cpus), MemoryState({}, memory), DeviceState(devices, frozenset()))


OLD = pod("old", container("c", 1))
FIRST = container("c0", 2, 3)
SECOND = container("c1", 4, memory=True)


class Node:
    """Looks at pods by uid, of which some have a directory."""

    def __init__(self) -> None:
        self.admissions = Admissions()
        self.now = 100.0
        self.sync({"old": OLD}, "old")

    def sync(
        self, pods: dict[str, PodAllocation], *directories: str, files: States | None = None, after: float = 0.0
    ) -> Sorted:
        self.now += after
        read = states(**{uid: item.containers for uid, item in pods.items()}) if files is None else files
        return self.admissions.sort(tuple(pods.values()), read, frozenset(directories), self.now)


def test_an_admission_has_begun_for_a_new_entry_until_its_evidence_or_the_next_sync() -> None:
    node, admissions = Node(), Admissions()
    old, new = states(old=OLD.containers), states(old=OLD.containers, new=(FIRST,))
    assert not node.admissions.has_begun(old, frozenset({"old"}))
    assert node.admissions.has_begun(new, frozenset({"old"}))
    assert not node.admissions.has_begun(new, frozenset({"old", "new"}))
    # Without directories there is no evidence to wait for, and before the first sync every entry is new.
    assert not node.admissions.has_begun(new, None)
    assert not admissions.has_begun(new, frozenset({"old"}))
    # A pod that the kubelet refuses may leave its entry: no later sync waits for it.
    node.sync({"old": OLD, "new": pod("new", FIRST)}, "old")
    assert not node.admissions.has_begun(new, frozenset({"old"}))


def test_a_pod_appears_as_a_whole_when_its_directory_does() -> None:
    node = Node()
    half, whole = pod("new", FIRST), pod("new", FIRST, SECOND)
    state = node.sync({"old": OLD, "new": half}, "old")
    assert state.pods == (OLD,)
    assert state.withheld == {("ns", "new")}
    assert not state.admitting
    assert node.sync({"old": OLD, "new": whole}, "old", after=2.0).pods == (OLD,)
    state = node.sync({"old": OLD, "new": whole}, "old", "new", after=0.1)
    assert (state.pods, state.withheld, state.due) == ((OLD, whole), frozenset(), None)


def test_a_pod_in_admission_delays_no_other_change() -> None:
    node = Node()
    assert node.sync({"new": pod("new", FIRST)}).pods == ()


def test_a_pod_whose_checkpoint_is_not_written_yet_is_not_whole() -> None:
    node = Node()
    new = pod("new", FIRST)
    # List is ahead of the file, which may be on a slow disk; without a uid no directory proves anything.
    state = node.sync({"old": OLD, "new": new}, "old", "new", files=states(old=OLD.containers))
    assert state.withheld == {("ns", "new")}


def test_a_pod_that_stays_as_it_is_without_proof_is_published_and_named() -> None:
    node = Node()
    new = pod("new", FIRST)
    assert node.sync({"old": OLD, "new": new}, "old").due is not None
    assert node.sync({"old": OLD, "new": new}, "old", after=STUCK_S - 0.1).withheld
    state = node.sync({"old": OLD, "new": new}, "old", after=0.1)
    assert state.pods == (OLD, new)
    assert state.admitting == {("ns", "new")}
    assert not state.withheld
    # It goes on, and is whole in the end.
    whole = pod("new", FIRST, SECOND)
    assert node.sync({"old": OLD, "new": whole}, "old", "new", after=1.0).admitting == frozenset()


def test_a_pod_that_changes_all_the_time_is_withheld_for_a_while_only() -> None:
    node = Node()
    withheld = []
    for number in range(20):
        containers = tuple(container(f"c{at}", 10 + at) for at in range(number + 1))
        withheld.append(bool(node.sync({"old": OLD, "new": pod("new", *containers)}, "old", after=1.0).withheld))
    assert withheld == [True] * int(AT_MOST_S) + [False] * (20 - int(AT_MOST_S))


def test_a_name_that_is_used_again_is_another_pod() -> None:
    node = Node()
    again = pod("old", container("c", 5))
    state = node.sync({"again": again}, "old")
    assert state.pods == ()
    assert state.withheld == {("ns", "old")}
    assert node.sync({"again": again}, "old", "again").pods == (again,)


def test_a_pod_that_is_resized_stays() -> None:
    node = Node()
    larger = pod("old", container("c", 1, 2))
    # List may be ahead of the file by then.
    assert node.sync({"old": larger}, "old", files=States()).pods == (larger,)
    assert node.sync({"old": larger}, "old").pods == (larger,)


def test_of_replicas_with_equal_allocations_the_replica_without_a_directory_is_withheld() -> None:
    node = Node()
    alike = container("c", memory=True)
    first, second = pod("one", alike), pod("two", alike, container("d", 7))
    assert node.sync({"old": OLD, "a": first}, "old", "a").pods == (OLD, first)
    state = node.sync({"old": OLD, "a": first, "b": pod("two", alike)}, "old", "a")
    assert state.pods == (OLD, first)
    assert state.withheld == {("ns", "two")}
    assert node.sync({"old": OLD, "a": first, "b": second}, "old", "a", "b").pods == (OLD, first, second)


def test_a_dead_replicas_entry_does_not_prove_a_live_replica() -> None:
    alike = (container("c", memory=True),)
    admissions = Admissions()
    listed = (pod("one", *alike),)
    state = admissions.sort(listed, states(dead=alike, living=alike, older=alike), frozenset({"living"}), 1.0)
    assert state.pods == listed


def test_a_pod_that_was_taken_for_an_ended_pod_is_known_by_its_own_entry() -> None:
    """Both pods are listed with equal allocations; only one has leftovers of an init container."""
    shown, left = container("c", memory=True), container("i", 1, 2)
    admissions, both = Admissions(), frozenset({"ours", "theirs"})
    files = states(ours=(left, shown), theirs=(shown,))
    pods = (pod("one", shown), pod("two", shown))
    assert admissions.sort(pods, files, both, 1.0).whole == both
    for stays in pods:
        admissions = Admissions()
        admissions.sort(pods, files, both, 1.0)
        state = admissions.sort((stays,), states(ours=(left, shown)), both, 2.0)
        assert (state.pods, state.whole) == ((stays,), {"ours"})
        # Files that cannot be read for a moment change nothing.
        assert admissions.sort((stays,), States(), both, 3.0).whole == {"ours"}


def test_devices_alone_identify_the_pod_of_a_directory() -> None:
    node = Node()
    new = pod("new", container("c", devices=(GPU,)))
    assert node.sync({"old": OLD, "new": new}, "old").withheld
    # How a plug-in places its devices may be another by now.
    moved = Device("gpu", "g0", (1,))
    files = states(old=OLD.containers, new=(container("c", devices=(moved,)),))
    assert node.sync({"old": OLD, "new": new}, "old", "new", files=files).pods == (OLD, new)


def test_a_pod_without_allocations_waits_for_the_pod_in_admission() -> None:
    node = Node()
    idle = pod("idle")
    setup = states(old=OLD.containers, new=(container("setup", 6),))
    # The CPUs are an init container's, which List does not show.
    assert node.sync({"old": OLD, "x": idle}, "old", files=setup).withheld == {("ns", "idle")}
    assert node.sync({"old": OLD, "x": idle}, "old", files=setup, after=2.0).withheld
    assert node.sync({"old": OLD, "x": idle}, "old", "new", files=setup).pods == (OLD, idle)


def test_a_pod_that_asks_for_nothing_is_there_after_a_moment() -> None:
    node = Node()
    idle = pod("idle")
    state = node.sync({"old": OLD, "x": idle}, "old", "x")
    assert state.withheld
    assert state.due is not None
    assert state.due <= QUIET_S
    assert node.sync({"old": OLD, "x": idle}, "old", "x", after=QUIET_S + 0.01).pods == (OLD, idle)


def test_a_time_limit_that_is_over_is_not_due() -> None:
    node = Node()
    for after in (0.0, QUIET_S):
        state = node.sync({"old": OLD, "new": pod("new", FIRST)}, "old", after=after)
    assert (state.withheld, state.due) == ({("ns", "new")}, pytest.approx(STUCK_S - QUIET_S))


def test_an_entry_of_an_ended_pod_delays_no_pod() -> None:
    node = Node()
    idle = pod("idle")
    node.sync({}, "old", files=states(old=OLD.containers))
    # Its directory goes before its entry.
    node.sync({"x": idle}, files=states(old=OLD.containers))
    assert node.sync({"x": idle}, files=states(old=OLD.containers), after=QUIET_S + 0.01).pods == (idle,)


def test_without_directories_a_pod_is_whole_once_it_has_not_changed_for_a_moment() -> None:
    admissions = Admissions()
    half, whole = pod("new", FIRST), pod("new", FIRST, SECOND)

    def sync(listed: tuple[PodAllocation, ...], now: float) -> Sorted:
        return admissions.sort(listed, States(), None, now)

    # What is there when we start was published before us.
    assert sync((OLD,), 0.0).pods == (OLD,)
    assert sync((OLD, half), 1.0).pods == (OLD,)
    assert sync((OLD, whole), 1.2).withheld
    state = sync((OLD, whole), 1.4)
    assert state.due is not None
    assert abs(state.due - (QUIET_S - 0.2)) < 1e-6
    assert sync((OLD, whole), 1.2 + QUIET_S).pods == (OLD, whole)
    # A pod that is known changes at once.
    assert sync((OLD, half), 2.0).pods == (OLD, half)


def test_pods_that_are_not_withheld_are_the_same_object() -> None:
    node = Node()
    same = (OLD,)
    files, directories = states(old=OLD.containers), frozenset({"old"})
    first = node.admissions.sort(same, files, directories, 101.0)
    assert node.admissions.sort(same, files, directories, 102.0) is first
    # A withheld pod changes nothing for other pods.
    with_new = (OLD, pod("new", FIRST))
    both = states(old=OLD.containers, new=(FIRST,))
    assert node.admissions.sort(with_new, both, directories, 103.0).pods is first.pods
