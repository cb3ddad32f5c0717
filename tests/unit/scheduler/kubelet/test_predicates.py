"""Refusals by sums of requests, after admission by the topology manager."""

from __future__ import annotations

import pytest

from kubelets import kubelet_of, machine_of, pod_of
from topowise_scheduler.kubelet import Device, Kubelet, KubeletConfiguration
from topowise_scheduler.kubelet.configuration import Settings, TopologySettings
from topowise_scheduler.kubelet.predicates import Shortage, shortages


@pytest.mark.parametrize(("resource", "admitted"), [("hugepages-2Mi", False), ("x.io/unknown", True)])
def test_hugepages_must_exist_and_unregistered_devices_need_not(resource: str, admitted: bool) -> None:
    kubelet = kubelet_of(machine_of(4, 4), predicates=True)
    admission = kubelet.admit(pod_of("p", {"cpu": "1", resource: "4Mi"}))
    assert admission.admitted is admitted
    assert [(shortage.resource, shortage.capacity) for shortage in admission.shortages] == [(resource, 0)] * (
        not admitted
    )


def test_a_request_of_0_fits_even_if_usage_exceeds_capacity() -> None:
    # fitsRequest checks only requests above 0: a node with reduced capacity admits pods that do not request it.
    assert shortages({"x.io/nic": 0}, {"x.io/nic": 2}, 0, {"pods": 1}, {"x.io/nic": 1}) == []
    assert [
        shortage.reason for shortage in shortages({"x.io/nic": 1}, {"x.io/nic": 2}, 0, {"pods": 1}, {"x.io/nic": 1})
    ] == ["OutOfx.io/nic"]


def test_an_unknown_resource_of_an_init_container_has_no_capacity() -> None:
    refused = shortages({"x.io/nic": 1}, {}, 0, {"pods": 1}, {}, {"x.io/nic": 1})
    assert refused == [Shortage("x.io/nic", 1, 0, 0)]


def test_a_pod_may_take_the_last_place_and_the_last_amount() -> None:
    assert shortages({"cpu": 1000}, {"cpu": 3000}, 9, {"pods": 10, "cpu": 4000}, {}) == []
    refused = shortages({"cpu": 1001}, {"cpu": 3000}, 10, {"pods": 10, "cpu": 4000}, {})
    assert [shortage.resource for shortage in refused] == ["pods", "cpu"]


def test_capacity_covers_the_last_pod_and_the_last_amount() -> None:
    kubelet = kubelet_of(machine_of(4), static=False, predicates=True, maxPods=2)
    kubelet.admit(pod_of("a", {"cpu": "3"}))
    assert kubelet.is_within
    kubelet.admit(pod_of("b", {"cpu": "4"}))
    assert kubelet.requested["cpu"] == kubelet.capacity["cpu"]
    assert kubelet.is_within
    kubelet.hold("c", {}, {})
    assert not kubelet.is_within


def test_resources_without_known_allocatable_are_not_checked() -> None:
    machine = machine_of(4, devices={"x.io/nic": [Device("n0", (0,))]})
    settings = kubelet_of(machine, static=False).settings
    known = Kubelet(machine, settings, predicates=True, allocatable={"cpu": 2000})
    assert known.admit(pod_of("a", {"cpu": "1", "memory": "1Ti", "hugepages-2Mi": "4Mi"})).admitted
    assert known.admit(pod_of("b", {"cpu": "1500m"})).reason == "OutOfcpu"
    assert known.admit(pod_of("c", {"x.io/nic": "1"})).admitted


def test_a_kubelet_checks_the_sums_by_default() -> None:
    config = KubeletConfiguration(maxPods=0)
    assert Kubelet(machine_of(4), config).admit(pod_of("p", {})).reason == "OutOfpods"
    assert Kubelet(machine_of(4), config, predicates=False).admit(pod_of("p", {})).admitted


def test_burstable_pods_count_with_their_requests() -> None:
    kubelet = kubelet_of(machine_of(4, 4), static=False, predicates=True)
    assert kubelet.admit(pod_of("a", {"cpu": "10500m"})).admitted
    admission = kubelet.admit(pod_of("b", {"cpu": "5", "memory": "20Gi"}))
    assert (admission.stage, admission.reason) == ("predicate", "OutOfcpu")
    assert admission.message == ("Node didn't have enough resource: cpu, requested: 5000, used: 10500, capacity: 15000")
    assert [shortage.reason for shortage in admission.shortages] == ["OutOfcpu", "OutOfmemory"]
    kubelet.remove("a")
    assert kubelet.admit(pod_of("b", {"cpu": "5"})).admitted


def test_the_own_requests_of_a_pod_that_is_admitted_again_do_not_count() -> None:
    kubelet = kubelet_of(machine_of(4, 4), predicates=True)
    for _ in range(2):
        assert kubelet.admit(pod_of("p", {"cpu": "8", "memory": "5Gi"})).admitted
    assert kubelet.requested["cpu"] == 8000


def test_settings_without_a_known_gate_refuse_no_sidecar() -> None:
    settings = Settings(TopologySettings("none", "container"), None, None, {}, 110, True, False)
    assert Kubelet(machine_of(4), settings).admit(pod_of("p", {"cpu": "1"}, sidecars=[{"cpu": "1"}])).admitted
