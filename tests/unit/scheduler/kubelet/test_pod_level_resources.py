"""Pods with pod-level resources: ignored by default, a bubble per pod with PodLevelResourceManagers."""

from __future__ import annotations

import msgspec
import pytest

from kubelets import GI, kubelet_of, machine_of, pod_of
from topowise import pods
from topowise_scheduler.kubelet import Admission, Kubelet
from topowise_scheduler.kubelet.hints import UNEXPECTED
from topowise_scheduler.kubelet.pod import view
from topowise_scheduler.kubelet.restart import restart

GATE = {"featureGates": {"PodLevelResourceManagers": True}}


def _kubelet(scope: str = "pod", **fields: object) -> Kubelet:
    return kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node", topologyManagerScope=scope, **fields)


def _exclusive(cpus: int) -> dict[str, str]:
    return {"cpu": str(cpus), "memory": f"{cpus}Gi"}


def _counts(admission: Admission) -> dict[str, int]:
    return {name: (placement.cpus or 0).bit_count() for name, placement in admission.placements.items()}


@pytest.mark.parametrize(
    ("version", "fits", "too_large"),
    [
        # The containers decide, as if there were no pod-level resources.
        ("v1.31.0", "", "TopologyAffinityError"),
        ("v1.33.0", "", "TopologyAffinityError"),
        # The managers read the containers, and the last check refuses the pod.
        ("v1.34.0", "PodLevelResourcesNotSupported", "TopologyAffinityError"),
        ("v1.35.0", "PodLevelResourcesNotSupported", "TopologyAffinityError"),
        # The managers ignore the pod.
        ("v1.36.0", "PodLevelResourcesNotSupported", "PodLevelResourcesNotSupported"),
        ("v1.38.0", "PodLevelResourcesNotSupported", "PodLevelResourcesNotSupported"),
    ],
)
def test_a_kubelet_without_the_gate_of_pod_level_resources(version: str, fits: str, too_large: str) -> None:
    gates = {} if version < "v1.32" else {"featureGates": {"PodLevelResources": False}}
    kubelet = kubelet_of(
        machine_of(4, 4), version=version, predicates=True, topologyManagerPolicy="single-numa-node", **gates
    )
    wide = kubelet.admit(pod_of("wide", {"cpu": "9", "memory": "1Gi"}, level={"cpu": "9", "memory": "2Gi"}))
    assert wide.reason == too_large
    small = kubelet.admit(pod_of("small", {"cpu": "2", "memory": "1Gi"}, level={"cpu": "3", "memory": "2Gi"}))
    assert (small.reason, small.stage) == (fits, "predicate" if fits else "")
    if fits:
        assert small.message == "PodLevelResources feature gate is disabled"
        assert kubelet.cpu is not None and kubelet.cpu.available.bit_count() == 15
    assert kubelet.admit(pod_of("plain", {"cpu": "2", "memory": "1Gi"})).admitted


def test_a_shortage_comes_before_the_missing_gate() -> None:
    """The containers' requests count, not those of the pod (SkipPodLevelResources)."""
    kubelet = kubelet_of(machine_of(4, 4), predicates=True, featureGates={"PodLevelResources": False})
    too_much, within = {"cpu": "17", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"}
    assert kubelet.admit(pod_of("a", too_much, level={"cpu": "17", "memory": "1Gi"})).reason == "OutOfcpu"
    assert kubelet.admit(pod_of("b", within, level=too_much)).reason == "PodLevelResourcesNotSupported"
    other = pod_of("c", within, level={"example.org/x": "1"})
    assert kubelet.admit(other).admitted


def test_a_restarted_kubelet_allocates_a_second_bubble_and_loses_the_first() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="best-effort", topologyManagerScope="pod", **GATE)
    pod = pod_of("p", _exclusive(2), {}, level={"cpu": "6", "memory": "6Gi"})
    assert kubelet.admit(pod).admitted
    result = restart(kubelet, kubelet.emptied(), [kubelet.view_of(pod)], {})
    assert result.problem is None
    # The CPU manager takes the second bubble before the memory manager refuses a second group.
    assert [admission.reason for admission in result.refused] == [UNEXPECTED]
    assert result.node.cpu is not None
    assert result.node.cpu.available.bit_count() == 15 - 2 * 6
    again = restart(result.node, kubelet.emptied(), [kubelet.view_of(pod)], {})
    assert again.problem is not None
    assert again.file == "cpu_manager_state"


@pytest.mark.parametrize(
    ("level", "message"),
    [
        (
            {"cpu": "4", "memory": "5Gi"},
            "pod rejected, sum of exclusive container cpu requests equals pod budget, "
            "leaving no cpus for shared containers",
        ),
        (
            {"cpu": "5", "memory": "4Gi"},
            "pod rejected, sum of exclusive container memory requests equals pod budget, "
            "leaving no memory for shared containers",
        ),
    ],
)
def test_best_effort_refuses_an_empty_shared_pool_with_its_own_reason(level: dict[str, str], message: str) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="best-effort", topologyManagerScope="pod", **GATE)
    admission = kubelet.admit(pod_of("p", _exclusive(4), {}, level=level))
    assert (admission.reason, admission.message) == ("EmptyPodSharedPoolError", message)
    assert kubelet.cpu is not None
    assert kubelet.cpu.available.bit_count() == 15


@pytest.mark.parametrize(
    ("level", "resource"), [({"cpu": "2", "memory": "3Gi"}, "cpus"), ({"cpu": "3", "memory": "2Gi"}, "memory")]
)
def test_sidecars_without_a_rest_for_a_shared_init_container_are_refused(level: dict[str, str], resource: str) -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="best-effort", topologyManagerScope="pod", **GATE)
    pod = pod_of("p", _exclusive(1), init=[{}], sidecars=[_exclusive(2)], level=level)
    spec = msgspec.structs.replace(pod.spec, initContainers=tuple(reversed(pod.spec.initContainers or ())))
    admission = kubelet.admit(msgspec.structs.replace(pod, spec=spec))
    assert (admission.reason, admission.message) == (
        "EmptyPodSharedPoolError",
        f"pod rejected, pod has shared init containers but no {resource} available for them",
    )


def test_a_fraction_of_a_byte_in_a_container_fails_the_pod() -> None:
    fraction = {"cpu": "1", "memory": "1500m"}
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="best-effort", topologyManagerScope="pod", **GATE)
    admission = kubelet.admit(pod_of("p", fraction, _exclusive(1), level={"cpu": "2", "memory": "2Gi"}))
    assert admission.rejection is not None
    assert admission.rejection.error == "[memorymanager] failed to represent quantity as int64"


def test_the_pod_gets_a_bubble_which_its_shared_containers_divide() -> None:
    kubelet = _kubelet(**GATE)
    admission = kubelet.admit(pod_of("p", _exclusive(2), {}, {}, level={"cpu": "6", "memory": "6Gi"}))
    assert _counts(admission) == {"c0": 2, "c1": 4, "c2": 4}
    assert admission.placements["c1"].cpus == admission.placements["c2"].cpus
    sizes = {name: [block.size // GI for block in placement.memory] for name, placement in admission.placements.items()}
    assert sizes == {"c0": [2], "c1": [4], "c2": [4]}
    assert kubelet.cpu is not None and kubelet.memory is not None
    assert kubelet.cpu.available.bit_count() == 15 - 6
    assert kubelet.memory.tables.free["memory"] == [1 * GI, 8 * GI]
    kubelet.remove("p")
    assert kubelet.cpu.available.bit_count() == 15
    assert kubelet.memory.tables.free["memory"] == [7 * GI, 8 * GI]


def test_a_shared_init_container_gets_the_rest_of_earlier_sidecars() -> None:
    pod = pod_of("p", {}, init=[{}], sidecars=[_exclusive(2)], level={"cpu": "6", "memory": "6Gi"})
    first, sidecar = pod.spec.initContainers or ()
    memory = []
    for containers in ((first, sidecar), (sidecar, first)):
        spec = msgspec.structs.replace(pod.spec, initContainers=containers)
        admission = _kubelet(**GATE).admit(msgspec.structs.replace(pod, spec=spec))
        memory.append([block.size for block in admission.placements["i0"].memory])
    assert memory == [[6 * GI], [4 * GI]]


def test_init_containers_take_no_memory_from_later_containers() -> None:
    kubelet = _kubelet(**GATE)
    pod = pod_of("p", {}, init=[_exclusive(6)], sidecars=[_exclusive(2)], level={"cpu": "6", "memory": "6Gi"})
    placements = kubelet.admit(pod).placements
    assert {name: [block.size // GI for block in placement.memory] for name, placement in placements.items()} == {
        "i0": [6],
        "s0": [2],
        "c0": [4],
    }


def test_very_little_memory_is_divided_to_the_byte() -> None:
    kubelet = _kubelet(**GATE)
    small = {"cpu": "1", "memory": "1"}
    placements = kubelet.admit(pod_of("p", small, {}, level={"cpu": "2", "memory": "2"})).placements
    assert [[block.size for block in placements[name].memory] for name in ("c0", "c1")] == [[1], [1]]
    assert kubelet.admit(pod_of("q", {}, init=[{}], level={"cpu": "2", "memory": "1"})).admitted


def test_a_sidecar_keeps_its_share_and_init_containers_use_the_rest() -> None:
    kubelet = _kubelet(**GATE)
    pod = pod_of("p", {}, init=[_exclusive(6), {}], sidecars=[_exclusive(2)], level={"cpu": "6", "memory": "6Gi"})
    assert _counts(kubelet.admit(pod)) == {"i0": 6, "i1": 6, "s0": 2, "c0": 4}


def test_an_empty_shared_pool_fails_the_hint() -> None:
    admission = _kubelet(**GATE).admit(pod_of("p", _exclusive(4), {}, level={"cpu": "4", "memory": "5Gi"}))
    assert (admission.reason, admission.message) == (
        "TopologyAffinityError",
        "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
    )


def test_a_request_of_a_single_unit_makes_a_container_exclusive_and_0_does_not() -> None:
    # IsContainerEquivalentQOSGuaranteed: requests of cpu and memory exist and equal the limits.
    def exclusive(requests: dict[str, int], limits: dict[str, int]) -> bool:
        container = pods.ContainerNeeds("c0", "app", requests, limits)
        level = pods.PodLevel({"cpu": 9000, "memory": 9}, {"cpu": 9000, "memory": 9})
        needs = pods.Needs((container,), {}, "Guaranteed", level)
        return view("p", needs, pod_level_resource_managers=True).containers[0].memory != {}

    assert exclusive({"cpu": 1000, "memory": 1}, {"cpu": 1000, "memory": 1})
    assert not exclusive({"cpu": 1000, "memory": 0}, {"cpu": 1000, "memory": 0})
    assert not exclusive({"cpu": 1000, "memory": 1}, {"cpu": 1000, "memory": 2})
    assert not exclusive({"cpu": 1000, "memory": 1}, {"cpu": 1000})


def test_pod_level_resources_are_managed_only_with_the_gate() -> None:
    level = pods.PodLevel({"cpu": 2000, "memory": 2}, {"cpu": 2000, "memory": 2})
    needs = pods.Needs((pods.ContainerNeeds("c0", "app", {}, {}),), {}, "Guaranteed", level)
    assert (view("p", needs).by_pod_level, view("p", needs).cpus) == (False, 0)
    managed = view("p", needs, pod_level_resource_managers=True)
    assert (managed.by_pod_level, managed.cpus, managed.memory) == (True, 2, {"memory": 2})
    assert _kubelet(**GATE).allocates_whole(managed)
    assert not _kubelet("container", **GATE).allocates_whole(managed)
    assert not _kubelet().allocates_whole(view("p", needs))
