"""Whether a kubelet of the model would start again on state files of its own: topowise.start_check with its amounts."""

from __future__ import annotations

from topowise.start_check import MemoryAmounts, Problem, cpu_problem, memory_problem
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.kubelet.node import Kubelet


def cpu_state_problem(kubelet: Kubelet, text: bytes) -> Problem | None:
    """Why `cpu_manager_state` would be refused by a kubelet with this machine and configuration, None if it is not."""
    if kubelet.cpu is None:
        return cpu_problem(text, policy="none", cpus=frozenset(), reserved=frozenset())
    policy = kubelet.cpu.policy
    return cpu_problem(
        text,
        policy="static",
        cpus=frozenset(members(policy.topology.cpus)),
        reserved=frozenset(members(policy.reserved)),
        strict=policy.options.strict_reservation,
    )


def memory_state_problem(kubelet: Kubelet, text: bytes) -> Problem | None:
    """Why `memory_manager_state` would be refused by a kubelet with this machine and configuration."""
    if kubelet.memory is None:
        return memory_problem(text, policy="None", nodes={})
    policy = kubelet.memory.policy
    # A node that the model leaves out has nothing, of every type.
    nodes = {node: dict.fromkeys(policy.total, MemoryAmounts(0, 0, 0)) for node in kubelet.all_node_ids}
    for position, node in enumerate(kubelet.node_ids):
        for name, total in policy.total.items():
            reserved = policy.system_reserved[position].get(name, 0)
            nodes[node][name] = MemoryAmounts(total[position], reserved, policy.allocatable[name][position])
    return memory_problem(text, policy="Static", nodes=nodes)
