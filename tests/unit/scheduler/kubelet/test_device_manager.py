"""Devices of plugins: on the NUMA nodes of the hint if possible, silently on any NUMA node otherwise."""

from __future__ import annotations

import pytest

from kubelets import kubelet_of, machine_of, pod_of
from topowise_scheduler.kubelet import Admission, Device, Kubelet, Machine
from topowise_scheduler.kubelet.device_table import DeviceTable
from topowise_scheduler.kubelet.pod import ContainerView, PodView, device_requests

NEAR = [Device("g0", (0,)), Device("g1", (0,)), Device("g2", (1,)), Device("g3", (1,))]


def _devices(admission: Admission, container: str = "c0") -> tuple[str, ...]:
    return admission.placements[container].devices.get("x.io/gpu", ())


def _gpus(count: int) -> dict[str, str]:
    return {"x.io/gpu": str(count)}


def _kubelet(devices: list[Device], policy: str) -> Kubelet:
    return kubelet_of(machine_of(4, 4, devices={"x.io/gpu": devices}), topologyManagerPolicy=policy)


def test_devices_fill_numa_nodes_in_order() -> None:
    kubelet = _kubelet(NEAR, "single-numa-node")
    assert _devices(kubelet.admit(pod_of("a", _gpus(2)))) == ("g0", "g1")
    assert _devices(kubelet.admit(pod_of("b", _gpus(1)))) == ("g2",)
    assert kubelet.admit(pod_of("c", _gpus(2))).reason == "TopologyAffinityError"


def test_restricted_takes_three_devices_from_two_nodes_of_two() -> None:
    kubelet = _kubelet(NEAR, "restricted")
    admission = kubelet.admit(pod_of("p", _gpus(3)))
    assert (admission.placements["c0"].numa, _devices(admission)) == ((0, 1), ("g0", "g1", "g2"))


def test_devices_without_a_node_fit_no_mask_but_are_taken_without_hints() -> None:
    devices = [Device("g0", (0,)), Device("g1", (0,)), Device("g2", None), Device("g3", ())]
    assert not _kubelet(devices, "restricted").admit(pod_of("p", _gpus(3))).admitted
    assert _kubelet(devices, "none").admit(pod_of("p", _gpus(3))).admitted


def test_a_resource_without_topology_has_no_hints() -> None:
    kubelet = _kubelet([Device("g0"), Device("g1")], "single-numa-node")
    admission = kubelet.admit(pod_of("p", _gpus(2)))
    assert (admission.admitted, admission.placements["c0"].numa) == (True, None)


def test_a_device_of_two_nodes_is_near_both() -> None:
    kubelet = _kubelet([Device("g0", (0, 1)), Device("g1", (1,))], "single-numa-node")
    admission = kubelet.admit(pod_of("p", _gpus(2)))
    assert (admission.placements["c0"].numa, _devices(admission)) == ((1,), ("g0", "g1"))


def test_devices_outside_the_mask_are_taken_if_the_mask_has_too_few() -> None:
    # CPUs fit on node 1 only, the device is on node 0: best-effort chooses node 0, and managers allocate elsewhere too.
    kubelet = _kubelet([Device("g0", (0,))], "best-effort")
    kubelet.admit(pod_of("a", {"cpu": "6", "memory": "1Mi"}))
    admission = kubelet.admit(pod_of("p", {"cpu": "6", "memory": "1Mi", **_gpus(1)}))
    placement = admission.placements["c0"]
    assert (placement.numa, placement.preferred, _devices(admission)) == ((0,), False, ("g0",))
    assert placement.cpus is not None
    assert placement.cpus & 0x0F0F  # some on node 0
    assert placement.cpus & 0xF0F0  # the rest on node 1


def test_without_a_healthy_device_even_a_request_of_none_is_refused() -> None:
    kubelet = _kubelet([Device("g0", (0,), healthy=False)], "none")
    admission = kubelet.admit(pod_of("p", _gpus(0)))
    assert admission.message == (
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices x.io/gpu, "
        "which is unexpected"
    )


@pytest.mark.parametrize("scope", ["container", "pod"])
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("none", "UnexpectedAdmissionError"),
        ("best-effort", "UnexpectedAdmissionError"),
        ("restricted", "TopologyAffinityError"),
        ("single-numa-node", "TopologyAffinityError"),
    ],
)
def test_after_the_end_of_a_plug_in_the_policy_decides_about_the_reason(policy: str, reason: str, scope: str) -> None:
    """The kubelet 1.36.2's own managers give these reasons. PluginDisconnected marks all devices unhealthy, but keeps
    their topology: so GetTopologyHints returns an empty list of hints. Without a topology it returns none."""
    machine = machine_of(4, 4, devices={"x.io/gpu": NEAR, "x.io/nic": [Device("n0", None)]})
    kubelet = kubelet_of(machine, topologyManagerPolicy=policy, topologyManagerScope=scope)
    kubelet.report_devices("x.io/gpu", [Device(each.id, each.numa, healthy=False) for each in NEAR])
    kubelet.report_devices("x.io/nic", [Device("n0", None, healthy=False)])
    assert kubelet.admit(pod_of("p", _gpus(2))).reason == reason
    assert kubelet.admit(pod_of("q", {"x.io/nic": "1"})).reason == "UnexpectedAdmissionError"


def test_too_few_devices_are_named_with_their_number() -> None:
    admission = _kubelet(NEAR, "none").admit(pod_of("p", _gpus(5)))
    assert admission.message == (
        "Allocate failed due to requested number of devices unavailable for x.io/gpu. Requested: 5, Available: 4, "
        "which is unexpected"
    )


def test_an_unregistered_resource_is_ignored_by_the_device_manager() -> None:
    kubelet = kubelet_of(machine_of(4, 4), topologyManagerPolicy="single-numa-node", predicates=True)
    assert kubelet.admit(pod_of("p", _gpus(3))).admitted


def test_devices_of_an_init_container_are_reused_but_a_sidecars_are_not() -> None:
    kubelet = _kubelet(NEAR, "single-numa-node")
    admission = kubelet.admit(pod_of("p", _gpus(1), init=[_gpus(2)], sidecars=[_gpus(1)]))
    assert [_devices(admission, name) for name in ("i0", "s0", "c0")] == [("g0", "g1"), ("g0",), ("g1",)]
    assert kubelet.devices.free("x.io/gpu").bit_count() == 2


def test_a_plugin_may_prefer_its_last_devices() -> None:
    from topowise_scheduler.kubelet import DevicePlugin

    machine = Machine(
        numa=machine_of(4, 4).numa,
        devices=(DevicePlugin("x.io/gpu", tuple(NEAR), preferred="last"),),
    )
    kubelet = kubelet_of(machine, topologyManagerPolicy="single-numa-node")
    assert _devices(kubelet.admit(pod_of("p", _gpus(1)))) == ("g1",)


def test_a_new_device_list_keeps_allocated_devices() -> None:
    kubelet = _kubelet(NEAR, "single-numa-node")
    kubelet.admit(pod_of("a", _gpus(2)))
    kubelet.report_devices("x.io/gpu", [Device("a9", (0,)), Device("g1", (0,)), Device("g2", (1,), healthy=False)])
    table = kubelet.devices.tables["x.io/gpu"]
    assert table.names(kubelet.devices.free("x.io/gpu")) == ("a9",)
    assert kubelet.placements("a")["c0"].devices == {"x.io/gpu": ("g0", "g1")}
    kubelet.remove("a")
    assert table.names(kubelet.devices.free("x.io/gpu")) == ("a9", "g1")


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_a_pod_keeps_its_devices_when_it_is_admitted_again(scope: str) -> None:
    machine = machine_of(4, 4, devices={"x.io/gpu": NEAR})
    kubelet = kubelet_of(machine, topologyManagerPolicy="restricted", topologyManagerScope=scope)
    first = kubelet.admit(pod_of("p", _gpus(2)))
    assert kubelet.admit(pod_of("p", _gpus(2))) == first


def test_devices_left_by_an_init_container_bind_the_pod_to_their_nodes() -> None:
    # generateDeviceTopologyHints omits masks without a reusable device, although node 1 has enough free devices.
    devices = [Device("g0", (0,)), Device("g1", (1,)), Device("g2", (1,))]
    kubelet = _kubelet(devices, "single-numa-node")
    assert not kubelet.admit(pod_of("tied", _gpus(2), init=[_gpus(1)])).admitted
    assert _devices(kubelet.admit(pod_of("free", _gpus(2)))) == ("g1", "g2")


def test_in_pod_scope_a_sidecar_runs_beside_the_init_containers_after_it() -> None:
    # resourcehelper.PodLimits: a sidecar counts for later init containers, not for earlier init containers.
    def peak(*kinds: tuple[str, int]) -> int | None:
        containers = tuple(
            ContainerView(f"c{number}", kind, 0, {}, {"x.io/gpu": count}, kind)  # type: ignore[arg-type]
            for number, (kind, count) in enumerate(kinds)
        )
        return device_requests(PodView("p", "BestEffort", containers, {}, False, False, 0, None), "x.io/gpu")

    assert peak(("sidecar", 2), ("init", 3), ("app", 1)) == 5
    assert peak(("init", 3), ("sidecar", 2), ("app", 1)) == 3
    assert peak(("sidecar", 2), ("app", 4)) == 6
    assert peak(("init", 3), ("init", 3), ("app", 1)) == 3
    assert peak() is None


def test_a_node_without_devices_is_near_none() -> None:
    table = DeviceTable([Device("g0", (2,)), Device("g1", (2, 7))], {0: 0, 2: 1, 5: 2})
    assert table.near == (0, 0b11, 0)


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_a_pod_after_a_kubelet_restart_is_bound_to_its_devices(scope: str) -> None:
    machine = machine_of(4, 4, devices={"x.io/gpu": NEAR})
    kubelet = kubelet_of(machine, topologyManagerPolicy="single-numa-node", topologyManagerScope=scope)
    kubelet.admit(pod_of("first", _gpus(2)))
    placed = kubelet.admit(pod_of("p", _gpus(2)))
    assert placed.placements["c0"].numa == (1,)
    kubelet.remove("first")
    assert kubelet.admit(pod_of("p", _gpus(2))) == placed
    assert kubelet.admit(pod_of("p", _gpus(1))).reason == "TopologyAffinityError"


def test_a_device_of_two_nodes_counts_once() -> None:
    devices = [Device("g0", (0, 1)), Device("g1", (0, 1)), Device("g2", None)]
    assert not _kubelet(devices, "restricted").admit(pod_of("p", _gpus(3))).admitted
    assert DeviceTable(devices, {0: 0, 1: 1}).of_one_node is False
    assert DeviceTable(NEAR, {0: 0, 1: 1}).of_one_node is True


def test_in_pod_scope_containers_keep_different_devices_after_a_restart() -> None:
    nics = [Device("n0", (0,)), Device("n1", (0,)), Device("n2", (0,))]
    machine = machine_of(4, 4, devices={"x.io/gpu": NEAR, "x.io/nic": nics})
    kubelet = kubelet_of(machine, topologyManagerPolicy="restricted", topologyManagerScope="pod")
    pod = pod_of("p", _gpus(2), {"x.io/nic": "1"})
    first = kubelet.admit(pod)
    assert first.admitted
    assert kubelet.admit(pod) == first


@pytest.mark.parametrize(("amount", "admitted"), [(0, True), (1, False)])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_devices_near_unknown_numa_nodes_fit_a_request_of_none_only(amount: int, admitted: bool, scope: str) -> None:
    machine = machine_of(2, 2, devices={"x.io/nic": [Device("n0", (7,)), Device("n1", (7,))]})
    kubelet = kubelet_of(machine, topologyManagerPolicy="single-numa-node", topologyManagerScope=scope)
    assert kubelet.admit(pod_of("p", {"cpu": "1", "memory": "1Gi", "x.io/nic": amount})).admitted == admitted
