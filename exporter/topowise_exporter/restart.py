"""Whether the kubelet would start again on the state files that it keeps, found out before it has to.

A kubelet compares them with machine and configuration when it starts, and exits if they do not match: after a changed
reservation, hugepages that were made at run time, memory that came or went. What is compared, and in which order, is
topowise.start_check'; here is where each side comes from. A file that is not there is made anew, and nothing is wrong.

A kubelet that gives a container CPUs or memory writes what is left and what is held one after the other, so in between
its files contradict themselves. They are compared once they have been left alone for a while; that also keeps the cost
out of admissions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from topowise.errors import SourceError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.start_check import CORRUPTED, MemoryAmounts, Problem, cpu_problem, memory_problem
from topowise_exporter.kubelet import checksum
from topowise_exporter.kubelet.model import Allocatable
from topowise_exporter.kubelet.state_files import CPU_STATE, MEMORY_STATE, StateFile
from topowise_exporter.machine.model import Machine, NumaNode
from topowise_exporter.zones import hugepages_name

_LONGEST: Final = 400
_SETTLED_S: Final = 5.0
_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))


class StartCheck:
    """`problems` has what would keep the kubelet from starting, by the name of the file."""

    def __init__(self, root: Path) -> None:
        self._cpu: StateFile[bytes] = StateFile(root / CPU_STATE, _as_it_is)
        self._memory: StateFile[bytes] = StateFile(root / MEMORY_STATE, _as_it_is)
        self._last: tuple[object, ...] = ()
        self._seen: tuple[object, ...] = ()
        self._seen_since = -_SETTLED_S
        self.problems: Mapping[str, str] = {}

    def compare(self, config: KubeletConfiguration, machine: Machine, allocatable: Allocatable, now: float) -> None:
        """Compare anew what has changed and then stayed the same for a while; the first time at once. `now` is in
        seconds, monotonic."""
        seen = (_text(self._cpu), _text(self._memory), config, machine, allocatable.cpus)
        if seen != self._seen:
            self._seen_since = now if self._seen else now - _SETTLED_S
            self._seen = seen
        if seen == self._last or now - self._seen_since < _SETTLED_S:
            return
        # Its words quote what changes with every pod: as long as only the files change, the first ones hold.
        held = self.problems if seen[2:4] == self._last[2:4] else {}
        self._last = seen
        cpu, memory, *_ = seen
        found: dict[str, Problem | None] = {}
        if cpu is not None:
            found[CPU_STATE] = _damage(checksum.check_cpu_state, cpu) or of_cpus(cpu, config, machine, allocatable)
        if memory is not None:
            found[MEMORY_STATE] = _damage(checksum.check_memory_state, memory) or of_memory(memory, config, machine)
        self.problems = {name: held.get(name) or _shown(one) for name, one in found.items() if one is not None}


def of_cpus(text: bytes, config: KubeletConfiguration, machine: Machine, allocatable: Allocatable) -> Problem | None:
    """Why `cpu_manager_state` would be refused, None if it would not."""
    cpus = frozenset(cpu for node in machine.nodes for cpu in node.cpus)
    # Which CPUs make up an amount that is reserved is the kubelet's choice: those that it does not give out.
    reserved = config.reserved_cpus or cpus - allocatable.cpus
    if config.cpuManagerPolicy == "static" and not config.reserved_cpus and not allocatable.cpus:
        return None
    strict = (config.cpuManagerPolicyOptions or {}).get("strict-cpu-reservation", "") in _TRUE
    return cpu_problem(text, policy=config.cpuManagerPolicy, cpus=cpus, reserved=reserved, strict=strict)


def of_memory(text: bytes, config: KubeletConfiguration, machine: Machine) -> Problem | None:
    """Why `memory_manager_state` would be refused, None if it would not."""
    nodes = {node.id: _amounts(node, config) for node in machine.nodes}
    return memory_problem(text, policy=config.memoryManagerPolicy, nodes=nodes)


def _damage(check: Callable[[bytes, str], None], text: bytes) -> Problem | None:
    """Why a kubelet takes a file for damaged before it looks at what the file says; None if it does not."""
    try:
        check(text, "file")
    except SourceError as exc:
        return Problem(CORRUPTED, str(exc))
    return None


def _amounts(node: NumaNode, config: KubeletConfiguration) -> dict[str, MemoryAmounts]:
    """As the memory manager starts with them (memorymanager/policy_static.go, getDefaultMachineState): hugepages of
    the sizes that this node has a directory of, which before Linux 6.1 a node without memory has not."""
    found = {}
    for size, count in node.hugepages.items():
        name, total = hugepages_name(size), size * count
        kept = config.reserved_on(node.id, name)
        found[name] = MemoryAmounts(total, kept, total - kept)
    in_pages = sum(one.total for one in found.values())
    kept = config.reserved_on(node.id, "memory")
    found["memory"] = MemoryAmounts(node.memory_bytes, kept, node.memory_bytes - kept - in_pages)
    return found


def _shown(problem: Problem) -> str:
    return f"{problem.error}{f' ({problem.detail})' if problem.detail else ''}"[:_LONGEST]


def _as_it_is(text: bytes, _source: str) -> bytes:
    return text


def _text(file: StateFile[bytes]) -> bytes | None:
    """What the file has, None if there is none that could be read now."""
    try:
        return file.read()
    except SourceError:
        return None
