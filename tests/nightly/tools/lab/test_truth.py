"""Reads what a node says, and compares an object and a prediction with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab import truth
from lab.truth import Agreement, Expected

MIB = 1 << 20
SYS = {
    "devices/system/node/node0/cpulist": "0-3\n",
    "devices/system/node/node0/distance": "10 21\n",
    "devices/system/node/node0/meminfo": "Node 0 MemTotal:  2048000 kB\nNode 0 MemFree: 1 kB\n",
    "devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "8\n",
    "devices/system/node/node1/cpulist": "4-7\n",
    "devices/system/node/node1/distance": "21 10\n",
    "devices/system/node/node1/meminfo": "Node 1 MemTotal:  1024000 kB\n",
    "devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages": "0\n",
    "bus/pci/devices/0000:11:00.0/numa_node": "0\n",
}
POD = ("default", "a")


def node_output() -> dict[str, Any]:
    """A pod of two containers: whole CPUs and a device, and a finished init container."""
    cpus = {
        "policyName": "static",
        "defaultCpuSet": "0,3-7",
        "entries": {"uid-a": {"main": "1-2", "first": "1"}},
        "checksum": 1,
    }
    blocks = [{"numaAffinity": [0], "type": "memory", "size": 64 * MIB}]
    memory = {"policyName": "Static", "machineState": {}, "entries": {"uid-a": {"main": blocks}}, "checksum": 1}
    device = {"resource_name": "example.com/nic", "device_ids": ["nic-0"], "topology": {"nodes": [{}]}}
    second_nic = {"resource_name": "example.com/nic", "device_ids": ["nic-1"], "topology": {"nodes": [{}]}}
    far = {"resource_name": "example.com/nic", "device_ids": ["nic-2"], "topology": {"nodes": [{"ID": "1"}]}}
    both = [
        {"resource_name": "example.com/gpu", "device_ids": ["gpu-0"], "topology": {"nodes": nodes}}
        for nodes in ([{}], [{"ID": "1"}])
    ]
    main = {
        "name": "main",
        "cpu_ids": ["2", "1"],
        "memory": [{"memory_type": "memory", "size": str(64 * MIB), "topology": {"nodes": [{}]}}],
        "devices": [device],
    }
    return {
        "files": {
            "cpu_manager_state": {"text": json.dumps(cpus)},
            "memory_manager_state": {"text": json.dumps(memory)},
        },
        "list": {
            "pod_resources": [
                {"name": "a", "namespace": "default", "containers": [main]},
                {"name": "idle", "namespace": "default", "containers": [{"name": "x"}]},
            ]
        },
        "allocatable": {"cpu_ids": ["1", "2"], "devices": [device, second_nic, far, *both]},
    }


def predicted(**changed: Any) -> dict[str, Expected]:
    whole: dict[str, Any] = {"numa": (0,), "cpus": "1-2", "devices": {"example.com/nic": ("nic-0",)}}
    return {"main": Expected(**{**whole, **changed}), "first": Expected((0,), "1")}


def agreement(expected: dict[str, Expected], *, has_hints: bool = True) -> Agreement:
    return truth.agreement(expected, "uid-a", POD, truth.read(node_output()), truth.nodes(SYS), has_hints=has_hints)


def test_a_device_of_two_nodes_is_a_single_device_and_node_0_needs_no_id() -> None:
    state = truth.read(node_output())
    assert state.near == {
        "example.com/nic": {"nic-0": {0}, "nic-1": {0}, "nic-2": {1}},
        "example.com/gpu": {"gpu-0": {0, 1}},
    }
    assert state.listed[POD]["main"].cpus == {1, 2}


def test_a_prediction_that_came_true_is_exact() -> None:
    assert agreement(predicted()) == Agreement(True, False)


def test_a_prediction_of_an_equal_device_is_equal_but_not_exact() -> None:
    assert agreement(predicted(devices={"example.com/nic": ("nic-1",)})) == Agreement(False, True)


def test_a_device_near_two_nodes_is_as_good_to_the_kubelet_as_a_device_near_the_chosen_node() -> None:
    near_both = node_output()
    device = near_both["list"]["pod_resources"][0]["containers"][0]["devices"][0]
    device |= {"resource_name": "example.com/gpu", "device_ids": ["gpu-0"]}
    second_gpu = {"resource_name": "example.com/gpu", "device_ids": ["gpu-1"], "topology": {"nodes": [{}]}}
    near_both["allocatable"]["devices"].append(second_gpu)
    expected = predicted(devices={"example.com/gpu": ("gpu-1",)})
    verdict = truth.agreement(expected, "uid-a", POD, truth.read(near_both), truth.nodes(SYS))
    assert verdict == Agreement(False, True)


def test_without_hints_a_device_near_another_node_is_as_good() -> None:
    elsewhere = predicted(devices={"example.com/nic": ("nic-2",)}, numa=(0, 1))
    assert agreement(elsewhere, has_hints=False) == Agreement(False, True)
    assert not agreement(predicted(devices={"example.com/nic": ("nic-1", "nic-2")}), has_hints=False).equal
    assert not agreement({**elsewhere, "first": Expected((0,), "3")}, has_hints=False).equal


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"cpus": "1,3"}, "CPUs 1,3 predicted, 1-2 given"),
        ({"cpus": ""}, "CPUs none predicted, 1-2 given"),
        ({"devices": {"example.com/nic": ("nic-2",)}}, "devices"),
        ({"devices": {}}, "devices"),
        ({"numa": (1,)}, r"NUMA nodes [1] predicted, [0] given"),
    ],
)
def test_what_came_otherwise_is_said(changed: dict[str, Any], why: str) -> None:
    verdict = agreement(predicted(**changed))
    assert (verdict.exact, verdict.equal) == (False, False)
    assert why in verdict.why[0]


def test_an_allocation_without_a_prediction_is_reported() -> None:
    assert "main: nothing predicted" in agreement({})[2][0]


def report(**changed: str) -> dict[str, Any]:
    holdings = [["default", "a", [["main", "1-2", [["memory", "0", 64 * MIB]], {"example.com/nic": ["nic-0"]}]]]]
    devices = {"example.com/nic": {"0": ["nic-0", "nic-1"], "1": ["nic-2"]}, "example.com/gpu": {"0-1": ["gpu-0"]}}
    named = {"topowise.io/holdings": json.dumps(holdings), "topowise.io/devices": json.dumps(devices), **changed}
    return {
        "metadata": {"name": "n"},
        "zones": [
            _zone(0, "0-3", [10, 21], 2048000, {"hugepages-2Mi": "16Mi"}),
            _zone(1, "4-7", [21, 10], 1024000, {"hugepages-2Mi": "0"}),
        ],
        "attributes": [{"name": name, "value": value} for name, value in named.items()],
    }


def _zone(number: int, cpus: str, distances: list[int], kib: int, more: dict[str, str]) -> dict[str, Any]:
    amounts = {"memory": f"{kib}Ki", **more}
    return {
        "name": f"node-{number}",
        "type": "Node",
        "costs": [{"name": f"node-{node_id}", "value": value} for node_id, value in enumerate(distances)],
        "attributes": [{"name": "topowise.io/cpus", "value": cpus}],
        "resources": [
            {"name": name, "capacity": amount, "allocatable": amount, "available": amount}
            for name, amount in amounts.items()
        ],
    }


def differences(raw: dict[str, Any]) -> list[str]:
    return truth.differences(raw, truth.nodes(SYS), truth.read(node_output()))


def test_an_object_that_is_true_differs_in_nothing() -> None:
    assert differences(report()) == []


@pytest.mark.parametrize(
    "attribute, value, expected",
    [
        ("topowise.io/holdings", "[]", "default/a is in the kubelet alone"),
        ("topowise.io/holdings", '[["default","b",[["x","1",[],{}]]]]', "default/b is in the object alone"),
        ("topowise.io/devices", "{}", "devices are {}"),
    ],
)
def test_what_an_object_says_otherwise_is_found(attribute: str, value: str, expected: str) -> None:
    assert any(expected in difference for difference in differences(report(**{attribute: value})))


def test_zones_are_compared_with_sys() -> None:
    raw = report()
    raw["zones"][1]["costs"][0]["value"] = 20
    raw["zones"][1]["attributes"][0]["value"] = "4-6"
    raw["zones"][0]["resources"][0]["capacity"] = "1Gi"
    problems = " ".join(differences(raw))
    for problem in ("node-1: distances", "node-1: CPUs", "node-0: memory"):
        assert problem in problems


def test_a_pod_elsewhere_than_explained_is_found() -> None:
    pod = {"metadata": {"uid": "uid-a", "namespace": "default", "name": "a"}}
    actual = truth.located(pod, truth.read(node_output()), truth.nodes(SYS))
    assert actual == {"main": {0}, "first": {0}}
    assert (
        truth.unexplained([{"container": "main", "chosen": [0]}, {"container": "first", "chosen": None}], actual) == []
    )
    assert truth.unexplained([{"container": "", "chosen": [1]}], actual) == ["pod: NUMA nodes [1] explained, [0] given"]
