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


def answer(allocatable: Allocatable = READY, pods: tuple[PodAllocation, ...] = (), **more: Any) -> KubeletAnswer:
    """Of a kubelet with static managers; `more` are names of pods and devices, as sets."""
    return KubeletAnswer(STATIC, allocatable, pods, **more)


U, V, LISTED = frozenset({"u"}), frozenset({"u", "v"}), {("ns", "p"): POD}
NIC_REGISTERED = frozenset({"nic"})
CPU, MEMORY, PODS = confirmation.CPU_MANAGER, confirmation.MEMORY_MANAGER, confirmation.PODS
NIC = confirmation.device("nic")


@pytest.mark.parametrize(
    ("said", "before", "reasons"),
    [
        pytest.param(
            answer(WITH_GPU, (POD,), listed=U, living=U), Before(LISTED, (GPU,), U), (), id="a kubelet that knows all"
        ),
        # Managers that are configured and have nothing are not ready. A state file that says off is the kubelet's word.
        pytest.param(answer(Allocatable()), Before(), (CPU, MEMORY), id="no manager has anything"),
        pytest.param(answer(Allocatable(READY.cpus)), Before(), (MEMORY,), id="no memory"),
        pytest.param(KubeletAnswer(OFF, Allocatable()), Before(), (), id="managers are off"),
        pytest.param(
            answer(Allocatable(), has_cpu_manager=False, has_memory_manager=False),
            Before(),
            (),
            id="off by their files",
        ),
        # The kubelet never lists a pod that only has leftovers of an init container.
        pytest.param(answer(living=V, listed=V - U), Before(), (PODS,), id="a living pod is not listed"),
        pytest.param(answer(living=V, listed=V - U), Before(unlisted=U), (), id="a living pod has leftovers only"),
        pytest.param(answer(living=frozenset()), Before(), (), id="after a reboot entries have no directory"),
        pytest.param(answer(directories=U), Before(LISTED, listed=U), (PODS,), id="files deleted, directories left"),
        pytest.param(answer(), Before(LISTED, listed=U), (), id="the pod has ended while the kubelet was down"),
        pytest.param(
            answer(pods=(PodAllocation("ns", "p"),), directories=U),
            Before(LISTED, listed=U),
            (),
            id="now without managers",
        ),
        pytest.param(answer(with_devices=V), Before(), (), id="the checkpoint of devices alone"),
        pytest.param(answer(with_devices=V), Before(listed=V - U), (PODS,), id="the checkpoint, of a listed pod"),
        pytest.param(
            answer(registered=NIC_REGISTERED),
            Before(devices=(GPU,)),
            (confirmation.device("gpu"), NIC),
            id="no devices",
        ),
        pytest.param(
            answer(WITH_GPU, registered=NIC_REGISTERED), Before(devices=(GPU,)), (NIC,), id="one plug-in is late"
        ),
    ],
)
def test_what_is_waited_for_after_a_start(said: KubeletAnswer, before: Before, reasons: tuple[str, ...]) -> None:
    assert set(incomplete_because(said, before, 1.0, LATE)) == set(reasons)
    limits = {CPU: startup.MANAGERS_AT_MOST_S, MEMORY: startup.MANAGERS_AT_MOST_S, PODS: startup.PODS_AT_MOST_S}
    for age in (startup.MANAGERS_AT_MOST_S, startup.PODS_AT_MOST_S, startup.DEVICES_AT_MOST_S):
        left = {reason for reason in reasons if limits.get(reason, startup.DEVICES_AT_MOST_S) > age}
        assert set(incomplete_because(said, before, age, LATE)) == left


@pytest.mark.parametrize(
    ("said", "before"),
    [
        pytest.param(answer(has_files=False), Before(LISTED), id="an empty list without state files"),
        # none -> static: the state files are gone, and the directories prove nothing.
        pytest.param(
            answer(pods=(POD,), listed=U, living=U),
            Before({("ns", "p"): PodAllocation("ns", "p")}),
            id="another policy",
        ),
        pytest.param(
            answer(pods=(PodAllocation("ns", "p"),), directories=U), Before(LISTED, listed=U), id="managers off by now"
        ),
    ],
)
def test_what_is_doubted_for_a_moment(said: KubeletAnswer, before: Before) -> None:
    assert set(incomplete_because(said, before, 1.0, startup.STEADY_S - 0.1)) == {PODS}
    assert set(incomplete_because(said, before, 1.0, startup.STEADY_S)) == set()
    assert set(incomplete_because(answer(), Before(LISTED), 1.0, 0.1)) == set()


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
    kubelet, socket = following(tmp_path, clock, up_for=2.0)
    assert kubelet.doubts(EMPTY)
    socket.unlink()
    assert not kubelet.doubts(KubeletAnswer(STATIC, READY))
    assert not kubelet.doubts(EMPTY)
