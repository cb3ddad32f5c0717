"""Whether a kubelet would start again on its own state files, which are compared with machine and configuration.

A kubelet whose `cpu_manager_state` or `memory_manager_state` does not match exits, and so does the next one, until
somebody drains the node and deletes the file. It is not looked at while the kubelet runs, so a changed reservation or
MemTotal, which differs by some pages from boot to boot, comes out at the worst time. Here it comes out before.

The texts are the kubelet's own, with what differs, which it only logs. A kubelet refuses a file with a wrong checksum
too, and the exporter looks at checksums (state_file_check.py). Upstream:
cm/cpumanager/policy_static.go and cm/memorymanager/policy_static.go (validateState), and their
state/state_checkpoint.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from topowise import cpuset
from topowise.checkpoints import Block, Cpus, CpuState, MemoryNode, MemoryState, MemoryTable, cpu_state, memory_state
from topowise.errors import ParseError

_NOT_RESTORED: Final = "could not restore state from checkpoint: "
CORRUPTED: Final = f"{_NOT_RESTORED}checkpoint is corrupted"
_DIFFERENT: Final = "[memorymanager] the expected machine state is different from the real one"


class Problem(NamedTuple):
    """Why a kubelet would not start: its own error, and what in particular is the matter ("" if that says it all)."""

    error: str
    detail: str = ""


class MemoryAmounts(NamedTuple):
    """Bytes of one type on one NUMA node, as machine and configuration have them now."""

    total: int
    system_reserved: int
    allocatable: int


def cpu_problem(text: bytes, *, policy: str, cpus: Cpus, reserved: Cpus, strict: bool = False) -> Problem | None:
    """Whether `cpu_manager_state` is refused at the next start.

    `policy` is cpuManagerPolicy, `cpus` are those that are online, `reserved` those kept for the system, and `strict`
    is strict-cpu-reservation. With policy none only the policy is compared.
    """
    try:
        state = cpu_state(text)
    except ParseError as exc:
        return Problem(CORRUPTED, str(exc))
    if state.policy != policy:
        return Problem(_NOT_RESTORED + _other_policy(policy, state.policy))
    if policy != "static":
        return None
    return _invalid_cpu_state(state, cpus - reserved if strict else cpus, reserved, strict)


def memory_problem(text: bytes, *, policy: str, nodes: Mapping[int, Mapping[str, MemoryAmounts]]) -> Problem | None:
    """Whether `memory_manager_state` is refused at the next start.

    `policy` is memoryManagerPolicy, `nodes` what every NUMA node would have of every type then.
    """
    try:
        state = memory_state(text)
    except ParseError as exc:
        return Problem(CORRUPTED, str(exc)[:200])
    if state.policy != policy:
        return Problem(f"{_NOT_RESTORED}[memorymanager] {_other_policy(policy, state.policy)}")
    if policy != "Static":
        return None
    held = list(_held_memory(state))
    if not state.nodes:
        empty = Problem("[memorymanager] machine state can not be empty when it has memory assignments")
        return empty if held else None
    for who, block in held:
        affinity = block.numaAffinity or ()
        uses = f"[memorymanager] {who} the memory assignment uses"
        lost = next((node for node in affinity if node not in nodes), None)
        if lost is not None:
            return Problem(f"{uses} the NUMA that does not exist", f"node {lost}")
        if any(block.type not in nodes[node] for node in affinity):
            return Problem(f"{uses} memory resource that does not exist", block.type)
    expected = _expected(nodes, [block for _, block in held])
    detail = next(_differences(state.nodes, expected), None)
    return None if detail is None else Problem(_DIFFERENT, detail)


def _held_memory(state: MemoryState) -> Iterator[tuple[str, Block]]:
    """Who has which block. What a pod has as a whole counts, and not its containers' shares of that."""
    for uid, containers in state.held.items():
        if uid in state.pods:
            yield from ((f"(pod: {uid}, container: )", block) for block in state.pods[uid])
            continue
        for name, blocks in containers.items():
            yield from ((f"(pod: {uid}, container: {name})", block) for block in blocks)


def _held_cpus(state: CpuState) -> Iterator[tuple[str, Cpus]]:
    """Who has which CPUs, named as the kubelet does. A holder of V1 is a container id alone."""
    for uid, containers in state.held.items():
        for name, cpus in containers.items():
            yield f"pod: {uid}, container: {name}" if uid else f"container id: {name}", cpus


def _invalid_cpu_state(state: CpuState, known: Cpus, reserved: Cpus, strict: bool) -> Problem | None:
    """validateState of policy static, in its order."""
    shared, held = state.shared, dict(_held_cpus(state))
    if not shared:
        return Problem("default cpuset cannot be empty") if held else None
    if strict and reserved & shared:
        both = cpuset.spell(reserved & shared)
        return Problem(
            f'some of strictly reserved cpus: "{both}" are present in defaultCpuSet: "{cpuset.spell(shared)}"'
        )
    if not strict and reserved - shared:
        return Problem(
            f'not all reserved cpus: "{cpuset.spell(reserved)}" are present in defaultCpuSet: "{cpuset.spell(shared)}"',
            f"{cpuset.spell(reserved - shared)} is held by a container",
        )
    for who, cpus in held.items():
        if cpus & shared:
            return Problem(
                f'{who} cpuset: "{cpuset.spell(cpus)}" overlaps with default cpuset "{cpuset.spell(shared)}"'
            )
    total = shared.union(*held.values(), *state.pods.values())
    if total == known:
        return None
    changes = [("came", known - total), ("went", total - known)]
    return Problem(
        f'current set of available CPUs "{cpuset.spell(known)}" doesn\'t match with CPUs in state '
        f'"{cpuset.spell(total)}"',
        ", ".join(f"{cpuset.spell(changed)} {what}" for what, changed in changes if changed),
    )


def _other_policy(configured: str, stored: str) -> str:
    return f'configured policy "{configured}" differs from state checkpoint policy "{stored}"'


def _expected(nodes: Mapping[int, Mapping[str, MemoryAmounts]], blocks: Iterable[Block]) -> dict[int, MemoryNode]:
    """The machine with these blocks on it: each fills its lowest nodes first."""
    reserved = {node: dict.fromkeys(types, 0) for node, types in nodes.items()}
    assignments = dict.fromkeys(nodes, 0)
    cells: dict[int, tuple[int, ...]] = {node: (node,) for node in nodes}
    for block in blocks:
        left = block.size
        for node in block.numaAffinity or ():
            assignments[node] += 1
            cells[node] = tuple(block.numaAffinity or ())
            taken = max(0, min(left, nodes[node][block.type].allocatable - reserved[node][block.type]))
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


def _differences(stored: Mapping[int, MemoryNode], expected: Mapping[int, MemoryNode]) -> Iterator[str]:
    """areMachineStatesEqual: what the file says of a group of nodes is compared for the group."""
    if stored.keys() != expected.keys():
        yield f"NUMA nodes {cpuset.spell(stored)} in the file, {cpuset.spell(expected)} on the machine"
        return
    for node, mine in stored.items():
        other = expected[node]
        if mine.number_of_assignments != other.number_of_assignments:
            yield f"node {node}: {mine.number_of_assignments} assignments, {other.number_of_assignments} in its entries"
        cells = mine.cells or ()
        if sorted(cells) != sorted(other.cells or ()):
            yield f"node {node}: grouped with {cpuset.spell(cells)}, by its entries {cpuset.spell(other.cells or ())}"
        if mine.memory_map.keys() != other.memory_map.keys():
            yield f"node {node}: {', '.join(sorted(mine.memory_map))}, now {', '.join(sorted(other.memory_map))}"
            continue
        for name, table in mine.memory_map.items():
            now = other.memory_map[name]
            for field in ("total", "system_reserved", "allocatable"):
                if getattr(table, field) != getattr(now, field):
                    yield (
                        f"node {node}, {name}: {field.replace('_', ' ')} {getattr(table, field)}, "
                        f"now {getattr(now, field)}"
                    )
            # A node of the group that lacks it, in the file or now, is named for itself.
            tables = [(stored[one].memory_map, expected[one].memory_map) for one in cells if one in stored]
            together = [(old[name], new[name]) for old, new in tables if name in old and name in new]
            for field in ("free", "reserved"):
                before = sum(getattr(old, field) for old, _ in together)
                after = sum(getattr(new, field) for _, new in together)
                if before != after:
                    yield f"node {node}, {name}: {field} {before}, by its entries {after}"
