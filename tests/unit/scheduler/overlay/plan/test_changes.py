"""Changes of machines and configurations."""

from __future__ import annotations

import pytest

from topowise.kubeletconfig import MemoryReservation
from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED
from topowise_scheduler.overlay import plan
from topowise_scheduler.overlay.plan import Change, NodeType, PlanError
from topowise_scheduler.overlay.plan.changes import changed_type
from topowise_scheduler.report.policies import Policies
from topowise_scheduler.report.synthetic_machine import Zone, parts

from .conftest import GIB, GPU, configuration, node_type


def test_a_split_keeps_everything() -> None:
    before = node_type().machine
    after = plan.with_numa_nodes(before, 8)
    assert [len(node.cores) for node in after.numa] == [4] * 8
    assert after.cpus() == before.cpus() and after.memory() == before.memory() and after.sockets() == 2
    assert [device.numa for device in after.devices[0].devices] == [(0,), (2,), (4,), (6,)]
    assert after.numa[0].distances == (10, 12, 12, 12, 32, 32, 32, 32)


def test_a_merge_undoes_a_split() -> None:
    before = node_type(gpus=8).machine
    again = plan.with_numa_nodes(plan.with_numa_nodes(before, 8), 2)
    assert [sorted(core.threads for core in node.cores) for node in again.numa] == [
        sorted(core.threads for core in node.cores) for node in before.numa
    ]
    assert [device.numa for device in again.devices[0].devices] == [device.numa for device in before.devices[0].devices]
    assert [node.distances for node in again.numa] == [(10, 32), (32, 10)]


@pytest.mark.parametrize("count", [3, 0, 5])
def test_a_number_that_does_not_divide_is_refused(count: int) -> None:
    with pytest.raises(PlanError, match="numa"):
        plan.with_numa_nodes(node_type().machine, count)


def test_reserved_memory_follows_a_split() -> None:
    on_first = (MemoryReservation(0, {"memory": "3Gi"}),)
    before = node_type(memoryManagerPolicy="Static", reservedMemory=on_first, systemReserved={"memory": "3Gi"})
    after = changed_type(before, Change(numa=4))
    kubelet = after.kubelet()
    assert kubelet.memory is not None
    assert [kubelet.memory.policy.system_reserved[at].get("memory", 0) for at in range(4)] == [
        1.5 * GIB,
        1.5 * GIB,
        0,
        0,
    ]


def test_reserved_memory_sets_the_sum() -> None:
    before = node_type(kubeReserved={"memory": "1Gi"}, systemReserved={"memory": "1Gi", "cpu": "1"})
    after = changed_type(before, Change(memory_manager="Static", reserved_memory={0: "2Gi", 1: "2Gi"}))
    assert after.kubelet().memory is not None
    with pytest.raises(PlanError, match="expected at least 1"):
        changed_type(before, Change(reserved_memory={0: "512Mi"}))


def test_a_memory_manager_reserves_on_the_first_numa_node() -> None:
    kubelet = changed_type(node_type(systemReserved={"memory": "2Gi"}), Change(memory_manager="Static")).kubelet()
    assert kubelet.memory is not None and kubelet.memory.policy.system_reserved[0] == {"memory": 2 * GIB}


def test_options_are_added() -> None:
    before = node_type(cpuManagerPolicyOptions={"full-pcpus-only": "true"})
    after = changed_type(before, Change(cpu_options={"distribute-cpus-across-numa": "true"}, reserved_cpus="0-1,32-33"))
    assert after.configuration.cpuManagerPolicyOptions == {  # type: ignore[union-attr]
        "full-pcpus-only": "true",
        "distribute-cpus-across-numa": "true",
    }
    assert after.kubelet().settings.cpu is not None


def test_amounts_can_change_policy_and_scope_only() -> None:
    zones = tuple(Zone(at, (), (("cpu", 16000, 14000), ("memory", 64 * GIB, 60 * GIB), (GPU, 2, 2))) for at in range(2))
    policies = Policies(TopologySettings("single-numa-node", "container"), cpu=True, memory=True)
    machine, settings, allocatable = parts(zones, policies, NEWEST_RECORDED)
    before = NodeType(machine, settings, allocatable=allocatable)
    assert changed_type(before, Change(policy="restricted")).kubelet().settings.topology.policy == "restricted"
    with pytest.raises(PlanError, match="reserved-cpus, numa: a node is reported by amounts only"):
        changed_type(before, Change(numa=4, reserved_cpus="0"))


def test_a_version_changes_the_behaviour() -> None:
    after = changed_type(NodeType(node_type().machine, configuration()), Change(version="v1.29.0"))
    assert after.version.minor == 29 and after.kubelet().settings.behaviour == after.version.behaviour
