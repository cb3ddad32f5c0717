"""Whether a kubelet of the model would start again on state files of its own: topowise.start_check with its amounts."""

from __future__ import annotations

from topowise.start_check import Problem, cpu_problem, memory_problem
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.kubelet.node import Kubelet
from topowise_scheduler.kubelet.restart import memory_amounts


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
    policy = "None" if kubelet.memory is None else "Static"
    return memory_problem(text, policy=policy, nodes=memory_amounts(kubelet))
