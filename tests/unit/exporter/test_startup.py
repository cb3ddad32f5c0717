"""When a kubelet's answers are the truth, from its start on, and that every wait for it ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from exporter_setup import Clock
from topowise.attributes import confirmation
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.kubelet import startup
from topowise_exporter.kubelet.allocations import Allocatable, ContainerAllocation, Device, MemoryBlock, PodAllocation
from topowise_exporter.kubelet.startup import Before, KubeletAnswer, KubeletRestarts, incomplete_because

STATIC = KubeletConfiguration(cpuManagerPolicy="static", memoryManagerPolicy="Static")
OFF = KubeletConfiguration()
GPU = Device("gpu", "g0", (0,))
READY = Allocatable(frozenset({1, 2}), (MemoryBlock("memory", (0,), 1 << 30),))
WITH_GPU = Allocatable(READY.cpus, READY.memory, (GPU,))
POD = PodAllocation("ns", "p", (ContainerAllocation("c", frozenset({1})),))
LATE = 1e6


def why(said: KubeletAnswer, before: Before | None = None, age: float = 1.0, steady: float = LATE) -> set[str]:
    return set(incomplete_because(said, before or Before(), age, steady))


def test_a_kubelet_that_knows_all_is_believed() -> None:
    said = KubeletAnswer(STATIC, WITH_GPU, (POD,), listed=frozenset({"u"}), living=frozenset({"u"}))
    assert why(said, Before({("ns", "p"): POD}, (GPU,), frozenset({"u"}))) == set()


def test_managers_that_are_configured_and_have_nothing_are_not_ready() -> None:
    assert why(KubeletAnswer(STATIC, Allocatable())) == {confirmation.CPU_MANAGER, confirmation.MEMORY_MANAGER}
    assert why(KubeletAnswer(STATIC, Allocatable(READY.cpus))) == {confirmation.MEMORY_MANAGER}
    assert why(KubeletAnswer(OFF, Allocatable())) == set()


def test_a_state_file_that_says_off_is_the_kubelets_word() -> None:
    # The configuration file has changed; the kubelet has not read it yet.
    assert why(KubeletAnswer(STATIC, Allocatable(), has_cpu_manager=False, has_memory_manager=False)) == set()


def test_a_configuration_that_is_not_the_kubelets_is_believed_in_the_end() -> None:
    assert why(KubeletAnswer(STATIC, Allocatable()), age=startup.MANAGERS_AT_MOST_S) == set()


def test_pods_of_the_state_files_that_live_are_waited_for() -> None:
    said = KubeletAnswer(STATIC, READY, living=frozenset({"u", "v"}), listed=frozenset({"v"}))
    assert why(said) == {confirmation.PODS}
    # The kubelet never lists a pod that only has leftovers of an init container.
    assert why(said, Before(unlisted=frozenset({"u"}))) == set()
    assert why(said, age=startup.PODS_AT_MOST_S) == set()


def test_pods_of_the_time_before_are_waited_for_also_if_the_state_files_were_deleted() -> None:
    before = Before({("ns", "p"): POD}, listed=frozenset({"u"}))
    assert why(KubeletAnswer(STATIC, READY, directories=frozenset({"u"})), before) == {confirmation.PODS}
    # The pod has ended while the kubelet was down.
    assert why(KubeletAnswer(STATIC, READY), before) == set()
    assert why(KubeletAnswer(STATIC, READY, directories=frozenset({"u"})), before, age=startup.PODS_AT_MOST_S) == set()
    # The kubelet has the pod, and its managers are off by now.
    changed = KubeletAnswer(STATIC, READY, pods=(PodAllocation("ns", "p"),), directories=frozenset({"u"}))
    assert why(changed, before) == set()
    assert why(changed, before, steady=0.0) == {confirmation.PODS}


def test_after_a_reboot_entries_without_directories_are_of_the_dead() -> None:
    # `living` only contains pods with a directory.
    assert why(KubeletAnswer(STATIC, READY, living=frozenset())) == set()


def test_the_checkpoint_of_devices_counts_for_pods_that_were_listed() -> None:
    said = KubeletAnswer(STATIC, READY, with_devices=frozenset({"ended", "p"}))
    assert why(said) == set()
    assert why(said, Before(listed=frozenset({"p"}))) == {confirmation.PODS}


def test_without_state_files_an_empty_list_after_a_start_is_doubted_for_a_moment() -> None:
    before = Before({("ns", "p"): POD})
    empty = KubeletAnswer(STATIC, READY, has_files=False)
    assert why(empty, before, steady=0.1) == {confirmation.PODS}
    assert why(empty, before, steady=startup.STEADY_S) == set()
    assert why(msgspec.structs.replace(empty, has_files=True), before, steady=0.1) == set()


def test_a_kubelet_with_another_policy_allocates_its_pods_anew() -> None:
    # none -> static: the state files are gone, and the directories prove nothing.
    before = Before({("ns", "p"): PodAllocation("ns", "p")})
    said = KubeletAnswer(STATIC, READY, (POD,), listed=frozenset({"u"}), living=frozenset({"u"}))
    assert why(said, before, steady=0.5) == {confirmation.PODS}
    assert why(said, before, steady=startup.STEADY_S) == set()


def test_devices_that_were_there_are_waited_for() -> None:
    nic = confirmation.device("nic")
    said = KubeletAnswer(STATIC, READY, registered=frozenset({"nic"}))
    assert why(said, Before(devices=(GPU,))) == {confirmation.device("gpu"), nic}
    assert why(said, Before(devices=(GPU,)), age=startup.DEVICES_AT_MOST_S) == set()
    assert why(KubeletAnswer(STATIC, WITH_GPU, registered=frozenset({"nic"})), Before(devices=(GPU,))) == {nic}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def started(socket: Path, at: float) -> None:
    """A kubelet makes its socket anew."""
    socket.unlink(missing_ok=True)
    # Another file, whatever the disk does with inode numbers.
    socket.with_name(f"other-{at}").touch()
    socket.touch()
    os.utime(socket, (at, at))


def following(tmp_path: Path, clock: Clock, *, up_for: float) -> tuple[KubeletRestarts, Path]:
    socket = tmp_path / "kubelet.sock"
    started(socket, 5000.0 - up_for)
    return KubeletRestarts(f"unix://{socket}", clock, lambda: 5000.0), socket


EMPTY = KubeletAnswer(STATIC, Allocatable())


def test_from_its_start_on_a_kubelet_is_doubted_until_it_is_right_once(tmp_path: Path, clock: Clock) -> None:
    kubelet, socket = following(tmp_path, clock, up_for=2.0)
    assert kubelet.doubts(EMPTY)
    assert not kubelet.doubts(KubeletAnswer(STATIC, READY))
    # What it says from then on is so.
    assert not kubelet.doubts(EMPTY)
    started(socket, 5001.0)
    assert kubelet.doubts(EMPTY)


def test_an_answer_that_may_be_from_before_the_start_ends_no_doubt(tmp_path: Path, clock: Clock) -> None:
    """The kubelet starts between the calls of a reading."""
    kubelet, socket = following(tmp_path, clock, up_for=4000.0)
    assert not kubelet.doubts(KubeletAnswer(STATIC, READY))
    started(socket, 5001.0)
    kubelet.doubts(KubeletAnswer(STATIC, READY))
    assert kubelet.doubts(EMPTY) == {confirmation.CPU_MANAGER, confirmation.MEMORY_MANAGER}
    assert not kubelet.doubts(KubeletAnswer(STATIC, READY))
    assert not kubelet.doubts(EMPTY)


@pytest.mark.parametrize("scheme", ["", "unix:", "unix://"])
def test_a_start_is_seen_however_the_socket_is_spelled(tmp_path: Path, clock: Clock, scheme: str) -> None:
    socket = tmp_path / "kubelet.sock"
    started(socket, 4998.0)
    kubelet = KubeletRestarts(f"{scheme}{socket}", clock, lambda: 5000.0)
    assert kubelet.doubts(EMPTY)
    assert not kubelet.doubts(KubeletAnswer(STATIC, READY))
    started(socket, 5001.0)
    assert kubelet.doubts(EMPTY)


def test_a_kubelet_that_has_been_up_for_long_is_believed_by_an_exporter_that_starts(
    tmp_path: Path, clock: Clock
) -> None:
    kubelet, _ = following(tmp_path, clock, up_for=4000.0)
    assert not kubelet.doubts(
        KubeletAnswer(STATIC, READY, living=frozenset({"leftover"}), registered=frozenset({"gpu"}))
    )


def test_every_wait_ends(tmp_path: Path, clock: Clock) -> None:
    kubelet, _ = following(tmp_path, clock, up_for=0.0)
    kubelet.before = Before(devices=(GPU,))
    said = msgspec.structs.replace(EMPTY, living=frozenset({"u"}))
    seen = []
    for _ in range(400):
        seen.append(len(kubelet.doubts(said)))
        clock.now += 1.0
    assert sorted(set(seen), reverse=True) == [4, 3, 2, 0]
    assert seen.index(0) == int(startup.MANAGERS_AT_MOST_S)


def test_what_comes_while_only_a_device_plug_in_is_missing_is_seen_as_it_is(tmp_path: Path, clock: Clock) -> None:
    """A pod that the kubelet refuses stays in its files for a while, and in no list."""
    kubelet, socket = following(tmp_path, clock, up_for=2.0)
    kubelet.before = Before(devices=(GPU,))
    left = KubeletAnswer(STATIC, READY, living=frozenset({"refused"}))
    assert kubelet.doubts(left) == {confirmation.PODS, confirmation.device("gpu")}
    assert kubelet.doubts(KubeletAnswer(STATIC, READY)) == {confirmation.device("gpu")}
    assert kubelet.doubts(left) == {confirmation.device("gpu")}
    started(socket, 5001.0)
    assert kubelet.doubts(left) == {confirmation.PODS, confirmation.device("gpu")}


def test_a_resource_whose_plug_in_is_away_keeps_its_devices_for_five_minutes(tmp_path: Path, clock: Clock) -> None:
    kubelet, _ = following(tmp_path, clock, up_for=4000.0)

    def sync(said: KubeletAnswer) -> tuple[Device, ...]:
        absent = kubelet.absent(said)
        kubelet.believe(said, absent)
        return absent

    assert sync(KubeletAnswer(STATIC, WITH_GPU)) == ()
    assert sync(KubeletAnswer(STATIC, READY)) == (GPU,)
    clock.now += startup.GONE_AFTER_S - 1
    assert sync(KubeletAnswer(STATIC, READY)) == (GPU,)
    clock.now += 2
    assert sync(KubeletAnswer(STATIC, READY)) == ()
    assert sync(KubeletAnswer(STATIC, WITH_GPU)) == ()
    # Away again: the time counts anew.
    assert sync(KubeletAnswer(STATIC, READY)) == (GPU,)


def test_one_device_that_is_unhealthy_is_not_a_plug_in_that_is_away(tmp_path: Path, clock: Clock) -> None:
    kubelet, _ = following(tmp_path, clock, up_for=4000.0)
    two = (GPU, Device("gpu", "g1", (0,)))
    kubelet.believe(KubeletAnswer(STATIC, Allocatable(devices=two)), ())
    assert kubelet.absent(KubeletAnswer(STATIC, WITH_GPU)) == ()


def test_a_socket_that_is_away_is_no_start(tmp_path: Path, clock: Clock) -> None:
    kubelet, socket = following(tmp_path, clock, up_for=4000.0)
    said: Any = KubeletAnswer(STATIC, READY)
    assert not kubelet.doubts(said)
    socket.unlink()
    assert not kubelet.doubts(EMPTY)
