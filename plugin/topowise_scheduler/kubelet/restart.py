"""A restart of the kubelet: whether its managers start with their state files, and which pods it refuses.

A starting kubelet reads three files: `cpu_manager_state`, `memory_manager_state` (an invalid file ends the process,
topowise.start_check) and the device manager's checkpoint. Then it admits all its pods again, by creation time. Until
all pods are admitted its sources are not ready, so no manager releases anything: neither the allocations of ended pods,
nor those of a pod that the kubelet has just refused.

A restarted kubelet refuses running pods. Device plugins usually register later than the pods are admitted: only a
running container keeps its devices then, so an ended init container with devices refuses its pod. full-pcpus-only
counts free cores before it finds the CPUs that a container already has (`CpuManager.allocate`). Upstream:
kubelet.go (HandlePodAdditions), cm/container_manager_linux.go, and the Start functions of the managers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from topowise.checkpoints import CpuState, MemoryBlock, MemoryNode, MemoryState, MemoryTable
from topowise.start_check import (
    CORRUPTED,
    NOT_RESTORED,
    MemoryAmounts,
    Problem,
    refused_cpu_state,
    refused_memory_state,
)
from topowise_scheduler.kubelet.cpu_manager import CpuManager
from topowise_scheduler.kubelet.device_manager import DeviceManager
from topowise_scheduler.kubelet.hints import Admission
from topowise_scheduler.kubelet.machine import Device
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.kubelet.memory_manager import Blocks
from topowise_scheduler.kubelet.node import Kubelet
from topowise_scheduler.kubelet.pod import PodView

CPU_FILE: Final = "cpu_manager_state"
MEMORY_FILE: Final = "memory_manager_state"
_UNREADABLE: Final = "json: cannot unmarshal object into Go struct field CPUManagerCheckpointV1.entries of type string"


class Restart(NamedTuple):
    """The kubelet after its restart. With a `problem` its managers do not start, and nothing is admitted.

    `file` is the state file that the kubelet refuses. `admissions` are in the order of the decisions. The next
    admission releases the allocations of the pods `stale`: ended and refused pods.
    """

    node: Kubelet
    admissions: tuple[Admission, ...] = ()
    stale: tuple[str, ...] = ()
    problem: Problem | None = None
    file: str = ""

    @property
    def refused(self) -> tuple[Admission, ...]:
        """The refused pods."""
        return tuple(admission for admission in self.admissions if not admission.admitted)


def restart(
    before: Kubelet,
    after: Kubelet,
    pods: Iterable[PodView],
    running: Mapping[str, Collection[str]],
    *,
    plugins_first: bool = False,
    with_pods: Collection[str] | None = None,
) -> Restart:
    """Returns what a restart does to a node.

    `before` is the state that the files contain. `after` is the kubelet that starts, without pods: `before.emptied()`,
    or a kubelet with another machine, configuration or version. `pods` are views of `after` by creation time, `running`
    has the names of running containers by pod UID. `plugins_first`: device plugins register before the pods are
    admitted, instead of after that. `with_pods` names the state files in the form of the gate PodLevelResourceManagers,
    None for both files if `before` has the gate.
    """
    node = after.fork()
    if with_pods is None:
        with_pods = (CPU_FILE, MEMORY_FILE) if before.settings.pod_level_resource_managers else ()
    # The gate adds pods to the files, and no other kubelet reads that form.
    unreadable = () if node.settings.pod_level_resource_managers else with_pods
    for file, problem_of in ((CPU_FILE, _cpu_problem), (MEMORY_FILE, memory_problem)):
        problem = _unreadable(file, before) if file in unreadable else problem_of(before, node)
        if problem is not None:
            return Restart(node, problem=problem, file=file)
    _restore(before, node)
    listed = {resource: table.devices for resource, table in before.devices.tables.items()}
    if plugins_first:
        _register(node.devices, listed)
    node.devices.running = running
    admissions = tuple([node.decide(pod) for pod in pods])
    node.devices.running = {}
    _register(node.devices, listed)
    return Restart(node, admissions, tuple(sorted(_uids(node) - node.active.keys())))


def _uids(node: Kubelet) -> set[str]:
    """Returns the pods with allocations."""
    uids = {*node.devices.allocations}
    for manager in (node.cpu, node.memory):
        if manager is not None:
            uids.update(manager.allocations, manager.bubbles)
    return uids


def _register(devices: DeviceManager, listed: Mapping[str, Iterable[Device]]) -> None:
    for resource, of_resource in listed.items():
        devices.report(resource, devices.table(of_resource))


def _restore(before: Kubelet, node: Kubelet) -> None:
    """Reads the state files into the managers of `node`."""
    if before.cpu is not None and node.cpu is not None and before.cpu.default:
        node.cpu.default = before.cpu.default
        node.cpu.allocations = before.cpu.allocations.copy()
        node.cpu.bubbles = before.cpu.bubbles.copy() if node.settings.pod_level_resource_managers else {}
    if before.memory is not None and node.memory is not None:
        policy, node.memory = node.memory.policy, before.memory.fork()
        node.memory.policy = node.memory.tables.policy = policy
        if not node.settings.pod_level_resource_managers:
            node.memory.bubbles = {}
    # The checkpoint has no list of devices, only ids: until a plugin registers, none is healthy.
    devices = node.devices
    _register(devices, dict.fromkeys(before.devices.tables, ()))
    for uid, containers in before.devices.allocations.items():
        for name, by_resource in containers.items():
            for resource, allocated in by_resource.items():
                devices.hold(uid, name, resource, before.devices.tables[resource].names(allocated))


def _unreadable(file: str, before: Kubelet) -> Problem:
    """Returns why a kubelet without the gate PodLevelResourceManagers does not read the file of a kubelet with it."""
    has_entries = file == CPU_FILE and before.cpu is not None and before.cpu.allocations
    return Problem(f"{NOT_RESTORED}{_UNREADABLE}" if has_entries else CORRUPTED)


def _cpu_problem(before: Kubelet, node: Kubelet) -> Problem | None:
    """Returns why the CPU manager of `node` does not start with the state of `before`, None if it starts."""
    state = _cpu_state(before.cpu)
    if node.cpu is None:
        return refused_cpu_state(state, policy="none", cpus=frozenset(), reserved=frozenset())
    policy = node.cpu.policy
    return refused_cpu_state(
        state,
        policy="static",
        cpus=frozenset(members(policy.topology.cpus)),
        reserved=frozenset(members(policy.reserved)),
        strict=policy.options.strict_reservation,
        openshift=policy.behaviour.strict_state_needs_all_cpus,
    )


def _cpu_state(manager: CpuManager | None) -> CpuState:
    if manager is None:
        return CpuState(frozenset(), {}, policy="none")
    return CpuState(
        frozenset(members(manager.default)),
        {
            uid: {name: frozenset(members(cpus)) for name, cpus in containers.items()}
            for uid, containers in manager.allocations.items()
        },
        {uid: frozenset(members(cpus)) for uid, cpus in manager.bubbles.items()},
    )


def memory_problem(before: Kubelet, node: Kubelet) -> Problem | None:
    """Returns why the memory manager of `node` does not start with the state of `before`, None if it starts."""
    policy = "None" if node.memory is None else "Static"
    return refused_memory_state(
        _memory_state(before),
        policy=policy,
        nodes=memory_amounts(node),
        by_group=node.settings.behaviour.memory_groups_are_compared,
    )


def memory_amounts(node: Kubelet) -> dict[int, dict[str, MemoryAmounts]]:
    """Returns the memory of each NUMA node and type by machine and configuration, empty with policy None."""
    if node.memory is None:
        return {}
    policy = node.memory.policy
    # A node that the model leaves out has nothing, of every type.
    nodes = {numa: dict.fromkeys(policy.total, MemoryAmounts(0, 0, 0)) for numa in node.all_node_ids}
    for position, numa in enumerate(node.node_ids):
        nodes[numa] = {
            name: MemoryAmounts(
                total[position],
                policy.system_reserved[position].get(name, 0),
                policy.allocatable[name][position],
            )
            for name, total in policy.total.items()
            if not policy.lacking.get(name, 0) >> position & 1
        }
    return nodes


def _memory_state(before: Kubelet) -> MemoryState:
    manager = before.memory
    if manager is None:
        return MemoryState({}, {}, policy="None")

    def stored(blocks: Blocks) -> tuple[MemoryBlock, ...]:
        return tuple([MemoryBlock(block.type, before.ids(block.mask), block.size) for block in blocks])

    tables, positions = manager.tables, {numa: position for position, numa in enumerate(before.node_ids)}
    nodes = {}
    for numa, amounts in memory_amounts(before).items():
        position = positions.get(numa)
        nodes[numa] = MemoryNode(
            0 if position is None else tables.assignments[position],
            {
                name: MemoryTable(
                    *amount,
                    0 if position is None else tables.reserved(name, position),
                    0 if position is None else tables.free[name][position],
                )
                for name, amount in amounts.items()
            },
            (numa,) if position is None else before.ids(tables.cells[position]),
        )
    return MemoryState(
        nodes,
        {
            uid: {name: stored(blocks) for name, blocks in containers.items()}
            for uid, containers in manager.allocations.items()
        },
        {uid: stored(blocks) for uid, blocks in manager.bubbles.items()},
    )
