"""Predicts whether a kubelet would start again with its own state files.

At start a kubelet compares `cpu_manager_state` and `memory_manager_state` with machine and configuration. It exits on a
mismatch, and so does every restart, until the node is drained and the file deleted. A running kubelet does not compare
them. So a changed reservation, or MemTotal, which differs by some pages from boot to boot, shows at the worst time.
This module finds it earlier.

The texts are the kubelet's own errors, with the difference, which the kubelet only logs. A kubelet also refuses a file
with a wrong checksum, which is not verified here. Upstream: cm/cpumanager/policy_static.go and
cm/memorymanager/policy_static.go (validateState), and their state/state_checkpoint.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from topowise import cpuset
from topowise.checkpoints import (
    Cpus,
    CpuState,
    MemoryBlock,
    MemoryNode,
    MemoryState,
    MemoryTable,
    cpu_state,
    memory_state,
)
from topowise.errors import ParseError

NOT_RESTORED: Final = "could not restore state from checkpoint: "
CORRUPTED: Final = f"{NOT_RESTORED}checkpoint is corrupted"
_DIFFERENT: Final = "[memorymanager] the expected machine state is different from the real one"


class Problem(NamedTuple):
    """Why a kubelet would not start: its own error, and the particular difference ("" if the error has it)."""

    error: str
    detail: str = ""


class MemoryAmounts(NamedTuple):
    """Present bytes of a memory type on a NUMA node, by machine and configuration."""

    total: int
    system_reserved: int
    allocatable: int


def cpu_problem(
    text: bytes, *, policy: str, cpus: Cpus, reserved: Cpus, strict: bool = False, openshift: bool = False
) -> Problem | None:
    """Returns why a kubelet would refuse `cpu_manager_state` at its next start, None if it would accept it. `policy` is
    cpuManagerPolicy, `cpus` are the online CPUs, `reserved` the reserved CPUs, and `strict` is strict-cpu-reservation.
    With policy none only the policy is compared.

    `openshift`: the kubelet expects the reserved CPUs in the file even if `strict`. Its workload partitioning is the
    only reason for a file that lacks all of them without `strict`, and it accepts such a file.
    """
    try:
        state = cpu_state(text)
    except ParseError as exc:
        return Problem(CORRUPTED, str(exc))
    return refused_cpu_state(state, policy=policy, cpus=cpus, reserved=reserved, strict=strict, openshift=openshift)


def refused_cpu_state(
    state: CpuState, *, policy: str, cpus: Cpus, reserved: Cpus, strict: bool = False, openshift: bool = False
) -> Problem | None:
    """Returns why a kubelet refuses a decoded `cpu_manager_state`; the arguments are those of `cpu_problem`."""
    if state.policy != policy:
        return Problem(NOT_RESTORED + _other_policy(policy, state.policy))
    if policy != "static":
        return None
    if openshift and not strict and state.shared and not reserved & state.shared:
        # Workload partitioning: the file lacks the reserved CPUs, which no check needs.
        return _invalid_cpu_state(state, cpus - reserved, frozenset(), strict)
    return _invalid_cpu_state(state, cpus - reserved if strict and not openshift else cpus, reserved, strict)


def memory_problem(
    text: bytes, *, policy: str, nodes: Mapping[int, Mapping[str, MemoryAmounts]], by_group: bool = True
) -> Problem | None:
    """Returns why a kubelet would refuse `memory_manager_state` at its next start, None if it would accept it. `policy`
    is memoryManagerPolicy, `nodes` has the amounts of every NUMA node and type at that start. `by_group` False compares
    the amounts of each NUMA node instead of a group's sums, as kubelets before 1.32 do (kubernetes#127074)."""
    try:
        state = memory_state(text)
    except ParseError as exc:
        return Problem(CORRUPTED, str(exc)[:200])
    return refused_memory_state(state, policy=policy, nodes=nodes, by_group=by_group)


def refused_memory_state(
    state: MemoryState, *, policy: str, nodes: Mapping[int, Mapping[str, MemoryAmounts]], by_group: bool = True
) -> Problem | None:
    """Returns why a kubelet refuses a decoded `memory_manager_state`; the arguments are those of `memory_problem`."""
    if state.policy != policy:
        return Problem(f"{NOT_RESTORED}[memorymanager] {_other_policy(policy, state.policy)}")
    if policy != "Static":
        return None
    assignments = list(_held_memory(state))
    if not state.nodes:
        empty = Problem("[memorymanager] machine state can not be empty when it has memory assignments")
        return empty if assignments else None
    for owner, block in assignments:
        uses = f"[memorymanager] {owner} the memory assignment uses"
        missing_node = next((node for node in block.nodes if node not in nodes), None)
        if missing_node is not None:
            return Problem(f"{uses} the NUMA that does not exist", f"node {missing_node}")
        if any(block.type not in nodes[node] for node in block.nodes):
            return Problem(f"{uses} memory resource that does not exist", block.type)
    blocks = [block for _, block in assignments]
    mixed = next(_mixed_groups(blocks), None)
    if mixed is not None:
        # The kubelet reads the file in random order, and starts in some orders.
        return Problem(_DIFFERENT, mixed)
    detail = next(_differences(state.nodes, _expected(nodes, blocks), by_group=by_group), None)
    return None if detail is None else Problem(_DIFFERENT, detail)


def _mixed_groups(blocks: Iterable[MemoryBlock]) -> Iterator[str]:
    """Yields the nodes whose blocks belong to several groups. The last block in random order decides on the group."""
    groups: dict[int, tuple[int, ...]] = {}
    for block in blocks:
        for node in block.nodes:
            if groups.setdefault(node, block.nodes) != block.nodes:
                yield (
                    f"node {node} has blocks of the groups {cpuset.to_text(groups[node])} and "
                    f"{cpuset.to_text(block.nodes)}; the kubelet reads them in random order, and starts in some orders"
                )


def _held_memory(state: MemoryState) -> Iterator[tuple[str, MemoryBlock]]:
    """Yields owner and block. Pod-level blocks count instead of the containers' shares."""
    for uid, containers in state.holders.items():
        if uid in state.pods:
            yield from ((f"(pod: {uid}, container: )", block) for block in state.pods[uid])
            continue
        for name, blocks in containers.items():
            yield from ((f"(pod: {uid}, container: {name})", block) for block in blocks)


def _held_cpus(state: CpuState) -> Iterator[tuple[str, Cpus]]:
    """Yields owner and CPUs, with the kubelet's name of the owner. In V1 the owner is only a container id."""
    for uid, containers in state.holders.items():
        for name, cpus in containers.items():
            yield f"pod: {uid}, container: {name}" if uid else f"container id: {name}", cpus


def _invalid_cpu_state(state: CpuState, known: Cpus, reserved: Cpus, strict: bool) -> Problem | None:
    """Returns what validateState of policy static would refuse, in its order of checks."""
    shared, cpus_by_owner = state.shared, dict(_held_cpus(state))
    if not shared:
        return Problem("default cpuset cannot be empty") if cpus_by_owner else None
    if strict and reserved & shared:
        both = cpuset.to_text(reserved & shared)
        return Problem(
            f'some of strictly reserved cpus: "{both}" are present in defaultCpuSet: "{cpuset.to_text(shared)}"'
        )
    if not strict and reserved - shared:
        return Problem(
            f'not all reserved cpus: "{cpuset.to_text(reserved)}" '
            f'are present in defaultCpuSet: "{cpuset.to_text(shared)}"',
            f"{cpuset.to_text(reserved - shared)} is held by a container",
        )
    for owner, cpus in cpus_by_owner.items():
        if cpus & shared:
            return Problem(
                f'{owner} cpuset: "{cpuset.to_text(cpus)}" overlaps with default cpuset "{cpuset.to_text(shared)}"'
            )
    total = shared.union(*cpus_by_owner.values(), *state.pods.values())
    if total == known:
        return None
    changes = [("came", known - total), ("went", total - known)]
    return Problem(
        f'current set of available CPUs "{cpuset.to_text(known)}" doesn\'t match with CPUs in state '
        f'"{cpuset.to_text(total)}"',
        ", ".join(f"{cpuset.to_text(changed)} {what}" for what, changed in changes if changed),
    )


def _other_policy(configured: str, stored: str) -> str:
    return f'configured policy "{configured}" differs from state checkpoint policy "{stored}"'


def _expected(nodes: Mapping[int, Mapping[str, MemoryAmounts]], blocks: Iterable[MemoryBlock]) -> dict[int, MemoryNode]:
    """Returns the machine state that results from these blocks: each block fills its lowest nodes first."""
    reserved = {node: dict.fromkeys(types, 0) for node, types in nodes.items()}
    assignments = dict.fromkeys(nodes, 0)
    cells: dict[int, tuple[int, ...]] = {node: (node,) for node in nodes}
    for block in blocks:
        left = block.size
        for node in block.nodes:
            assignments[node] += 1
            cells[node] = block.nodes
            room = nodes[node][block.type].allocatable - reserved[node][block.type]
            # Less than nothing is nearly 2^64 bytes for the kubelet.
            taken = left if room < 0 else min(left, room)
            reserved[node][block.type] += taken
            left -= taken
    return {
        node: MemoryNode(
            assignments[node],
            {
                name: MemoryTable(*amounts, reserved[node][name], amounts.allocatable - reserved[node][name])
                for name, amounts in types.items()
            },
            cells[node],
        )
        for node, types in nodes.items()
    }


def _differences(
    stored: Mapping[int, MemoryNode], expected: Mapping[int, MemoryNode], *, by_group: bool
) -> Iterator[str]:
    """Yields differences as areMachineStatesEqual finds them."""
    if stored.keys() != expected.keys():
        yield f"NUMA nodes {cpuset.to_text(stored)} in the file, {cpuset.to_text(expected)} on the machine"
        return
    for node, saved in stored.items():
        real = expected[node]
        if saved.number_of_assignments != real.number_of_assignments:
            yield f"node {node}: {saved.number_of_assignments} assignments, {real.number_of_assignments} in its entries"
        cells = saved.cells or ()
        if sorted(cells) != sorted(real.cells or ()):
            by_entries = cpuset.to_text(real.cells or ())
            yield f"node {node}: grouped with {cpuset.to_text(cells)}, by its entries {by_entries}"
        if saved.memory_map.keys() != real.memory_map.keys():
            yield f"node {node}: {', '.join(sorted(saved.memory_map))}, now {', '.join(sorted(real.memory_map))}"
            continue
        for name, table in saved.memory_map.items():
            now = real.memory_map[name]
            for field in ("total", "system_reserved", "allocatable"):
                if getattr(table, field) != getattr(now, field):
                    yield (
                        f"node {node}, {name}: {field.replace('_', ' ')} {getattr(table, field)}, "
                        f"now {getattr(now, field)}"
                    )
            # A node of the group without this type, in the file or now, is reported on its own.
            compared = cells if by_group else (node,)
            tables = [(stored[own].memory_map, expected[own].memory_map) for own in compared if own in stored]
            together = [(old[name], new[name]) for old, new in tables if name in old and name in new]
            for field in ("free", "reserved"):
                before = sum(getattr(old, field) for old, _ in together)
                after = sum(getattr(new, field) for _, new in together)
                if before != after:
                    yield f"node {node}, {name}: {field} {before}, by its entries {after}"
