"""Whether a kubelet would start again on its own state files, which are compared with machine and configuration.

A kubelet whose `cpu_manager_state` or `memory_manager_state` does not match exits, and so does the next one, until
somebody drains the node and deletes the file. It is not looked at while the kubelet runs, so a changed reservation or
MemTotal, which differs by some pages from boot to boot, comes out at the worst time. Here it comes out before.

The texts are the kubelet's own, with what differs, which it only logs. Checksums are not verified: a file that somebody
edited is refused as well. Upstream: cm/cpumanager/policy_static.go and cm/memorymanager/policy_static.go
(validateState), their state/state_checkpoint.go, and checkpoint V4 of the CPU manager (kubernetes#139102).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from topowise import cpuset, documents
from topowise.errors import ParseError

# A CPU is named by the init containers of a pod and by one more, and by dead pods.
_MOST_HELD: Final = 1 << 18
_NOT_RESTORED: Final = "could not restore state from checkpoint: "
_DIFFERENT: Final = "[memorymanager] the expected machine state is different from the real one"

Decoded = TypeVar("Decoded")
Cpus = frozenset[int]


class Problem(NamedTuple):
    """Why a kubelet would not start: its own error, and what in particular is the matter ("" if that says it all)."""

    error: str
    detail: str = ""


class MemoryAmounts(NamedTuple):
    """Bytes of one type on one NUMA node, as machine and configuration have them now."""

    total: int
    system_reserved: int
    allocatable: int


class _CpuData(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str = ""
    default_cpu_set: str = ""
    entries: dict[str, dict[str, str] | str] | None = None
    pod_entries: dict[str, dict[str, str] | str] | None = None


class _CpuCheckpoint(_CpuData, frozen=True):
    """Up to V3 all is on top; from V4 on `data` is a text that counts, and the rest is for older kubelets."""

    data: str = ""


class _Table(msgspec.Struct, frozen=True, rename="camel"):
    total: int = 0
    system_reserved: int = 0
    allocatable: int = 0
    reserved: int = 0
    free: int = 0


class _Node(msgspec.Struct, frozen=True, rename="camel"):
    number_of_assignments: int = 0
    memory_map: dict[str, _Table] = {}
    cells: tuple[int, ...] | None = ()


class _Block(msgspec.Struct, frozen=True):
    numaAffinity: tuple[int, ...] | None
    type: str
    size: int


class _MemoryCheckpoint(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str = ""
    machine_state: dict[str, _Node] | None = None
    entries: dict[str, dict[str, tuple[_Block, ...]]] | None = None


class CpuState(NamedTuple):
    """`cpu_manager_state` of any version: the policy, the CPUs that nobody holds exclusively, and by pod uid and
    container those that somebody does. `pods` are what pods hold as a whole (V4)."""

    policy: str
    shared: Cpus
    held: Mapping[str, Mapping[str, Cpus]]
    pods: Mapping[str, Mapping[str, Cpus]]


def cpu_state(text: bytes) -> CpuState:
    """The state as a kubelet of the file's version reads it. Raises ParseError.

    V1, of kubelets up to 1.17, names containers by an id that nobody else knows: they are under "" as their pod.
    """
    state = _cpu_data(text)
    return CpuState(
        state.policy_name,
        cpuset.parse(state.default_cpu_set),
        _by_pod(state.entries or {}),
        _by_pod(state.pod_entries or {}),
    )


def cpu_problem(text: bytes, *, policy: str, cpus: Cpus, reserved: Cpus, strict: bool = False) -> Problem | None:
    """Whether `cpu_manager_state` is refused at the next start.

    `policy` is cpuManagerPolicy, `cpus` are those that are online, `reserved` those kept for the system, and `strict`
    is strict-cpu-reservation. With policy none only the policy is compared.
    """
    try:
        state = _cpu_data(text)
        if state.policy_name != policy:
            return Problem(_NOT_RESTORED + _other_policy(policy, state.policy_name))
        shared = cpuset.parse(state.default_cpu_set)
        held = dict(_held(state.entries or {}))
        bubbles = dict(_held(state.pod_entries or {}))
    except ParseError as exc:
        return Problem(f"{_NOT_RESTORED}checkpoint is corrupted", str(exc))
    if policy != "static":
        return None
    return _invalid_cpu_state(shared, held, bubbles, cpus - reserved if strict else cpus, reserved, strict)


def memory_problem(text: bytes, *, policy: str, nodes: Mapping[int, Mapping[str, MemoryAmounts]]) -> Problem | None:
    """Whether `memory_manager_state` is refused at the next start.

    `policy` is memoryManagerPolicy, `nodes` what every NUMA node would have of every type then.
    """
    try:
        state = _decode(text, _MemoryCheckpoint)
        stored = {int(node): found for node, found in (state.machine_state or {}).items()}
    except (ParseError, ValueError) as exc:
        return Problem(f"{_NOT_RESTORED}checkpoint is corrupted", str(exc)[:200])
    if state.policy_name != policy:
        return Problem(f"{_NOT_RESTORED}[memorymanager] {_other_policy(policy, state.policy_name)}")
    if policy != "Static":
        return None
    held = [
        (uid, name, block)
        for uid, containers in (state.entries or {}).items()
        for name, blocks in containers.items()
        for block in blocks
    ]
    if not stored:
        empty = Problem("[memorymanager] machine state can not be empty when it has memory assignments")
        return empty if held else None
    for uid, name, block in held:
        lost = next((node for node in block.numaAffinity or () if node not in nodes), None)
        if lost is not None:
            who = f"[memorymanager] (pod: {uid}, container: {name}) the memory assignment uses"
            return Problem(f"{who} the NUMA that does not exist", f"node {lost}")
        if any(block.type not in nodes[node] for node in block.numaAffinity or ()):
            who = f"[memorymanager] (pod: {uid}, container: {name}) the memory assignment uses"
            return Problem(f"{who} memory resource that does not exist", block.type)
    expected = _expected(nodes, [block for _, _, block in held])
    detail = next(_differences(stored, expected), None)
    return None if detail is None else Problem(_DIFFERENT, detail)


def _invalid_cpu_state(
    shared: Cpus, held: Mapping[str, Cpus], bubbles: Mapping[str, Cpus], known: Cpus, reserved: Cpus, strict: bool
) -> Problem | None:
    """validateState of policy static, in its order."""
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
    total = shared.union(*held.values(), *bubbles.values())
    if total == known:
        return None
    changes = [("came", known - total), ("went", total - known)]
    return Problem(
        f'current set of available CPUs "{cpuset.spell(known)}" doesn\'t match with CPUs in state '
        f'"{cpuset.spell(total)}"',
        ", ".join(f"{cpuset.spell(changed)} {what}" for what, changed in changes if changed),
    )


def _cpu_data(text: bytes) -> _CpuData:
    checkpoint = _decode(text, _CpuCheckpoint)
    return _decode(checkpoint.data.encode(), _CpuData) if checkpoint.data else checkpoint


def _by_pod(entries: Mapping[str, Mapping[str, str] | str]) -> dict[str, dict[str, Cpus]]:
    found: dict[str, dict[str, Cpus]] = {}
    count = 0
    for uid, containers in entries.items():
        pod, named = ("", {uid: containers}) if isinstance(containers, str) else (uid, containers)
        mine = found.setdefault(pod, {})
        for name, cpus in named.items():
            mine[name] = cpuset.parse(cpus)
            count += len(mine[name])
            if count > _MOST_HELD:
                raise ParseError("checkpoint", f"{len(entries)} entries", f"up to {_MOST_HELD} CPUs in all of them")
    return found


def _held(entries: Mapping[str, Mapping[str, str] | str]) -> Iterator[tuple[str, Cpus]]:
    """Who holds which CPUs, named as the kubelet does. A holder of V1 is a container id alone. Raises ParseError."""
    for pod, containers in entries.items():
        if isinstance(containers, str):
            yield f"container id: {pod}", cpuset.parse(containers)
            continue
        for container, cpus in containers.items():
            yield f"pod: {pod}, container: {container}", cpuset.parse(cpus)


def _other_policy(configured: str, stored: str) -> str:
    return f'configured policy "{configured}" differs from state checkpoint policy "{stored}"'


def _expected(nodes: Mapping[int, Mapping[str, MemoryAmounts]], blocks: Iterable[_Block]) -> dict[int, _Node]:
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
        node: _Node(
            assignments[node],
            {
                name: _Table(*amounts, reserved[node][name], amounts.allocatable - reserved[node][name])
                for name, amounts in types.items()
            },
            cells[node],
        )
        for node, types in nodes.items()
    }


def _differences(stored: Mapping[int, _Node], expected: Mapping[int, _Node]) -> Iterator[str]:
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
            together = [one for one in cells if one in stored and name in stored[one].memory_map]
            for field in ("free", "reserved"):
                before = sum(getattr(stored[one].memory_map[name], field) for one in together)
                after = sum(getattr(expected[one].memory_map[name], field) for one in together)
                if before != after:
                    yield f"node {node}, {name}: {field} {before}, by its entries {after}"


def _decode(text: bytes, kind: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(text, type=kind)
    except documents.UNREADABLE as exc:
        raise ParseError("checkpoint", text[:80].decode(errors="replace"), f"the kubelet's form ({exc})") from exc
