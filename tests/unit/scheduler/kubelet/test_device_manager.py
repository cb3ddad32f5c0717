"""Devices of plugins that ended or were allocated before a restart, which no recorded decision shows."""

from __future__ import annotations

import pytest

from kubelets import kubelet_of, machine_of, pod_of
from topowise_scheduler.kubelet import Device, Placement
from topowise_scheduler.kubelet.device_manager import Choice
from topowise_scheduler.kubelet.device_table import DeviceSet, DeviceTable
from topowise_scheduler.kubelet.masks import members

NEAR = [Device("g0", (0,)), Device("g1", (0,)), Device("g2", (1,)), Device("g3", (1,))]


def _gpus(count: int) -> dict[str, str]:
    return {"x.io/gpu": str(count)}


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


def test_a_changed_request_of_devices_fails_the_allocation_where_no_hint_does() -> None:
    kubelet = kubelet_of(machine_of(4, 4, devices={"x.io/gpu": NEAR}))
    assert kubelet.admit(pod_of("p", _gpus(2))).admitted
    message = kubelet.admit(pod_of("p", _gpus(1))).message
    assert 'container "c0" changed request for resource "x.io/gpu" from 2 to 1' in message


@pytest.mark.parametrize(("amount", "admitted"), [(0, True), (1, False)])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_devices_near_unknown_numa_nodes_fit_a_request_of_none_only(amount: int, admitted: bool, scope: str) -> None:
    machine = machine_of(2, 2, devices={"x.io/nic": [Device("n0", (7,)), Device("n1", (7,))]})
    kubelet = kubelet_of(machine, topologyManagerPolicy="single-numa-node", topologyManagerScope=scope)
    assert kubelet.admit(pod_of("p", {"cpu": "1", "memory": "1Gi", "x.io/nic": amount})).admitted == admitted


def test_a_device_of_two_nodes_counts_once() -> None:
    devices = [Device("g0", (0, 1)), Device("g1", (0, 1)), Device("g2", None)]
    assert (
        not kubelet_of(machine_of(4, 4, devices={"x.io/gpu": devices}), topologyManagerPolicy="restricted")
        .admit(pod_of("p", _gpus(3)))
        .admitted
    )
    assert DeviceTable(devices, {0: 0, 1: 1}).of_one_node is False
    assert DeviceTable(NEAR, {0: 0, 1: 1}).of_one_node is True


@pytest.mark.parametrize(
    ("policy", "asked"),
    [
        ("restricted", [("i0", 0b0011, 0b0011, 0, 1), ("c0", 0b0010, 0b0010, 0, 1), ("c0", 0b0001, 0b0011, 0b0010, 1)]),
        ("none", [("i0", 0b1111, 0b1111, 0, 1), ("c0", 0b1000, 0b1000, 0, 1), ("c0", 0b0111, 0b1111, 0b1000, 1)]),
    ],
)
def test_a_chooser_is_asked_where_a_kubelet_chooses_by_chance(
    policy: str, asked: list[tuple[str, int, int, int, int]]
) -> None:
    """For each step: the devices of an init container, those near the hint, and other devices."""
    choices: list[Choice] = []

    def last(choice: Choice) -> DeviceSet:
        choices.append(choice)
        return 1 << max(members(choice.among))

    kubelet = kubelet_of(machine_of(4, 4, devices={"x.io/gpu": NEAR}), topologyManagerPolicy=policy)
    kubelet.devices.chooser = last
    assert kubelet.admit(pod_of("p", _gpus(2), init=[_gpus(1)])).admitted
    assert choices == [Choice(container, "x.io/gpu", *step) for container, *step in asked]
    choices.clear()
    assert kubelet.admit(pod_of("q", _gpus(1), init=[_gpus(1)])).admitted
    # The container takes the device of the init container, and no more.
    assert [choice.container for choice in choices] == ["i0", "c0"]


def test_a_device_of_two_reported_pods_stays_allocated_until_both_have_ended() -> None:
    kubelet = kubelet_of(machine_of(4, 4, devices={"x.io/gpu": NEAR}))
    reported = {
        uid: ({}, {"c0": Placement("app", None, False, None, (), {"x.io/gpu": ids})})
        for uid, ids in (("a", ("g0", "g1")), ("b", ("g1",)))
    }
    kubelet.hold_exactly(reported)
    kubelet.hold_exactly({"b": reported["b"]})
    assert kubelet.devices.free("x.io/gpu") == 0b1101
