"""Which pods a restarted kubelet admits again, and what it reads: restart.py case by case."""

from __future__ import annotations

import msgspec
import pytest

from kubelets import kubelet_of, machine_of, pod_of
from topowise_scheduler.kubelet import Device, Kubelet, KubeletConfiguration, MemoryReservation, version_of
from topowise_scheduler.kubelet.hints import SMT_ALIGNMENT, UNEXPECTED, WOULD_PANIC
from topowise_scheduler.kubelet.restart import CPU_FILE, MEMORY_FILE, Restart, restart
from topowise_scheduler.report import replay

NIC = "x.io/nic"
NICS = [Device(f"n{number}", (number % 2,)) for number in range(4)]


@pytest.fixture
def busy() -> Kubelet:
    """Two NUMA nodes with two devices each, and a pod with two CPUs and a device."""
    kubelet = kubelet_of(machine_of(4, 4, devices={NIC: NICS}), topologyManagerPolicy="single-numa-node")
    assert kubelet.admit(pod_of("p", {"cpu": "2", "memory": "1Gi", NIC: 1})).admitted
    return kubelet


def _again(kubelet: Kubelet, *, running: tuple[str, ...] = ("c0",), first: bool = False) -> Restart:
    views = [active.pod for active in kubelet.active.values() if active.pod is not None]
    return restart(kubelet, kubelet.emptied(), views, {"p": running}, plugins_first=first)


def _refusals(result: Restart) -> list[tuple[str, str]]:
    return [(admission.uid, admission.reason) for admission in result.refused]


def test_a_running_pod_keeps_everything(busy: Kubelet) -> None:
    result = _again(busy)
    assert (result.problem, _refusals(result), result.stale) == (None, [], ())
    assert result.node.placements("p")["c0"].cpus == busy.placements("p")["c0"].cpus
    assert result.node.placements("p")["c0"].devices == busy.placements("p")["c0"].devices
    assert result.node.devices.free(NIC) == busy.devices.free(NIC)


def test_a_container_that_does_not_run_needs_its_device_plugin(busy: Kubelet) -> None:
    assert _refusals(_again(busy, running=())) == [("p", UNEXPECTED)]
    assert _refusals(_again(busy, running=(), first=True)) == []


def test_an_ended_init_container_with_a_device_refuses_its_running_pod() -> None:
    kubelet = kubelet_of(machine_of(4, 4, devices={NIC: NICS}), topologyManagerPolicy="restricted")
    assert kubelet.admit(pod_of("p", {"cpu": "2", "memory": "1Gi"}, init=[{NIC: 1}])).admitted
    kubelet.start("p")
    (admission,) = _again(kubelet).refused
    assert "no healthy devices present" in admission.message


@pytest.mark.parametrize("listed", [True, False])
def test_a_device_that_is_unhealthy_or_gone_refuses_its_container(busy: Kubelet, listed: bool) -> None:
    (device,) = busy.placements("p")["c0"].devices[NIC]
    sick = [msgspec.structs.replace(nic, healthy=nic.id != device) for nic in NICS]
    busy.report_devices(NIC, [nic for nic in sick if listed or nic.healthy])
    (admission,) = _again(busy, running=(), first=True).refused
    assert admission.reason == (UNEXPECTED if listed else WOULD_PANIC)
    assert ("previously allocated devices are no longer healthy" in admission.message) == listed
    assert _refusals(_again(busy)) == []


def test_before_1_34_an_unlisted_device_has_no_numa_node() -> None:
    """In a value of Go's map an absent device has no topology; as a pointer it is nil."""
    config = KubeletConfiguration(topologyManagerPolicy="best-effort")
    old = Kubelet(machine_of(4, 4, devices={NIC: NICS}), config, version=version_of("v1.33.5"))
    assert old.admit(pod_of("p", {NIC: 1})).admitted
    (device,) = old.placements("p")["c0"].devices[NIC]
    old.report_devices(NIC, [nic for nic in NICS if nic.id != device])
    result = _again(old, first=True)
    assert _refusals(result) == []
    assert not result.admissions[0].placements["c0"].preferred
    (refused,) = _again(old, running=(), first=True).refused
    assert "previously allocated devices are no longer healthy" in refused.message


def test_full_pcpus_only_counts_free_cores_before_it_finds_the_cpus() -> None:
    options = {"full-pcpus-only": "true"}
    kubelet = kubelet_of(machine_of(4, 4), cpuManagerPolicyOptions=options, topologyManagerPolicy="restricted")
    for uid in ("p", "q"):
        assert kubelet.admit(pod_of(uid, {"cpu": "6", "memory": "1Gi"})).admitted
    result = _again(kubelet)
    assert _refusals(result) == [("p", SMT_ALIGNMENT), ("q", SMT_ALIGNMENT)]
    # The CPUs of a refused pod stay allocated until the next admission.
    assert result.stale == ("p", "q")
    assert result.node.cpu is not None
    assert kubelet.cpu is not None
    assert result.node.cpu.default == kubelet.cpu.default


def test_ended_pods_are_released_after_the_restart(busy: Kubelet) -> None:
    result = restart(busy, busy.emptied(), [], {})
    assert result.stale == ("p",)
    assert result.node.devices.allocations.keys() == {"p"}


@pytest.mark.parametrize(
    ("fields", "file"),
    [
        ({"reservedSystemCPUs": "0-7"}, CPU_FILE),
        ({"cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"}}, CPU_FILE),
        ({"cpuManagerPolicy": "none"}, CPU_FILE),
        ({"memoryManagerPolicy": "None"}, MEMORY_FILE),
        ({"topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod"}, ""),
    ],
)
def test_a_changed_configuration_needs_new_state_files(busy: Kubelet, fields: dict[str, str], file: str) -> None:
    machine = machine_of(4, 4, devices={NIC: NICS})
    after = kubelet_of(machine, **{"topologyManagerPolicy": "single-numa-node", **fields})
    result = restart(busy, after, [active.pod for active in busy.active.values() if active.pod], {"p": ("c0",)})
    assert result.file == file
    assert (result.problem is None) == (file == "")
    assert [admission.uid for admission in result.admissions] == ([] if file else ["p"])


@pytest.mark.parametrize(
    ("version", "starts"), [("v1.36.2", True), *((f"v1.{minor}.0+7cf4c05", False) for minor in range(32, 37))]
)
def test_a_kubelet_of_openshift_does_not_start_again_with_strict_reservation(version: str, starts: bool) -> None:
    config = KubeletConfiguration(
        cpuManagerPolicy="static",
        reservedSystemCPUs="0",
        cpuManagerPolicyOptions={"strict-cpu-reservation": "true"},
    )
    kubelet = Kubelet(machine_of(4), config, version=version_of(version))
    result = restart(kubelet, kubelet.emptied(), [], {})
    assert (result.problem is None) == starts


def test_pod_level_state_files_are_unreadable_without_the_gate() -> None:
    gate = {"featureGates": {"PodLevelResourceManagers": True}}
    kubelet = kubelet_of(machine_of(4), topologyManagerPolicy="restricted", **gate)
    assert kubelet.admit(pod_of("p", {"cpu": "2", "memory": "1Gi"})).admitted
    after = kubelet_of(machine_of(4), topologyManagerPolicy="restricted")
    result = restart(kubelet, after, [], {})
    assert result.problem is not None
    assert result.problem.error.startswith("could not restore state from checkpoint: json: cannot unmarshal object")


@pytest.mark.parametrize(("admitted_with_gate", "file"), [(True, MEMORY_FILE), (False, "")])
def test_each_manager_writes_the_form_of_pods_at_its_own_change(admitted_with_gate: bool, file: str) -> None:
    """Without exclusive CPUs only `memory_manager_state` has changed since the gate was turned on."""
    config = KubeletConfiguration(
        topologyManagerPolicy="none",
        memoryManagerPolicy="Static",
        systemReserved={"memory": "1Gi"},
        reservedMemory=(MemoryReservation(0, {"memory": "1Gi"}),),
    )
    gate = msgspec.structs.replace(config, featureGates={"PodLevelResourceManagers": True})
    as_replay = [replay.Configuration(**msgspec.structs.asdict(each)) for each in (config, gate)]
    node = replay.Replay(replay.Scenario(machine_of(4), as_replay[0], kubeletVersion="v1.36.2"))
    admit = replay.Event("admit", "p", pod_of("p", {"cpu": "1", "memory": "1Gi"}))
    assert "error" not in node.apply(replay.Event("restart", config=as_replay[1]))
    if admitted_with_gate:
        assert node.apply(admit)["admitted"]
    result = node.apply(replay.Event("restart", config=as_replay[0]))
    assert result.get("file", "") == file
    assert result.get("error", "").endswith("checkpoint is corrupted") == bool(file)
