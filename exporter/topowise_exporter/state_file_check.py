"""Predicts whether the kubelet would start again on its present state files.

When a kubelet starts, it compares them with machine and configuration, and exits if they do not match: after a changed
reservation, hugepages that were allocated at run time, or hot-plugged memory. topowise.start_check has the checks and
their order; this module gets the data of both sides. A missing file is no problem: the kubelet writes a new file.

During an admission the kubelet writes free and allocated resources in sequence, so its files contradict each
other for a moment. They are compared once they have not changed for a while, which also keeps the cost out of
admissions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from topowise import kubeletconfig
from topowise.errors import SourceError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.start_check import MemoryAmounts, Problem, cpu_problem, memory_problem
from topowise_exporter.kubelet.allocations import Allocatable
from topowise_exporter.kubelet.state_files import CPU_STATE, MEMORY_STATE, StateFile
from topowise_exporter.machine.inventory import Machine, NumaNode
from topowise_exporter.zones import hugepages_name

_LONGEST: Final = 400
_SETTLED_S: Final = 5.0
_COMPARES_GROUPS: Final = (1, 32)
_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))


class StartCheck:
    """Compares the state files with configuration and machine, again after each change that has settled."""

    def __init__(self, root: Path) -> None:
        self._cpu: StateFile[bytes] = StateFile(root / CPU_STATE, _unparsed)
        self._memory: StateFile[bytes] = StateFile(root / MEMORY_STATE, _unparsed)
        self._compared: tuple[object, ...] = ()
        self._seen: tuple[object, ...] = ()
        self._seen_since = -_SETTLED_S
        self._problems: Mapping[str, str] = {}

    def compare(
        self,
        config: KubeletConfiguration,
        machine: Machine,
        allocatable: Allocatable,
        now: float,
        version: str | None = None,
    ) -> Mapping[str, str]:
        """Returns why the kubelet would refuse to start, by name of the state file. The first call compares at once;
        later, a change is compared once it has stayed the same for a while. `now` is in seconds, monotonic. `version`
        is the kubelet's, None if unknown."""
        by_group = kubeletconfig.release_of(version) >= _COMPARES_GROUPS
        openshift = kubeletconfig.is_openshift(version)
        seen = (_text(self._cpu), _text(self._memory), config, machine, allocatable.cpus, by_group, openshift)
        if seen != self._seen:
            self._seen_since = now if self._seen else now - _SETTLED_S
            self._seen = seen
        if seen == self._compared or now - self._seen_since < _SETTLED_S:
            return self._problems
        # A problem's text quotes values that change with every pod: while only the files change, the first text stays.
        previous = self._problems if seen[2:4] == self._compared[2:4] else {}
        self._compared = seen
        cpu, memory, *_ = seen
        problems: dict[str, Problem | None] = {}
        if cpu is not None:
            problems[CPU_STATE] = of_cpus(cpu, config, machine, allocatable, openshift=openshift)
        if memory is not None:
            problems[MEMORY_STATE] = of_memory(memory, config, machine, by_group=by_group)
        self._problems = {
            name: previous.get(name) or _text_of(problem) for name, problem in problems.items() if problem is not None
        }
        return self._problems


def of_cpus(
    text: bytes, config: KubeletConfiguration, machine: Machine, allocatable: Allocatable, *, openshift: bool = False
) -> Problem | None:
    """Why `cpu_manager_state` would be refused, None if it would not."""
    cpus = frozenset(cpu for node in machine.nodes for cpu in node.cpus)
    # Which CPUs make up an amount that is reserved is the kubelet's choice: the CPUs that are not allocatable.
    reserved = config.reserved_cpus or cpus - allocatable.cpus
    if config.cpuManagerPolicy == "static" and not config.reserved_cpus and not allocatable.cpus:
        return None
    strict = (config.cpuManagerPolicyOptions or {}).get("strict-cpu-reservation", "") in _TRUE
    return cpu_problem(
        text, policy=config.cpuManagerPolicy, cpus=cpus, reserved=reserved, strict=strict, openshift=openshift
    )


def of_memory(text: bytes, config: KubeletConfiguration, machine: Machine, *, by_group: bool = True) -> Problem | None:
    """Why `memory_manager_state` would be refused, None if it would not."""
    nodes = {node.id: _amounts(node, config) for node in machine.nodes}
    return memory_problem(text, policy=config.memoryManagerPolicy, nodes=nodes, by_group=by_group)


def _amounts(node: NumaNode, config: KubeletConfiguration) -> dict[str, MemoryAmounts]:
    """The initial amounts of the memory manager (memorymanager/policy_static.go, getDefaultMachineState): hugepages
    of the sizes for which the NUMA node has a directory. Before Linux 6.1 a node without memory has no directory."""
    amounts = {}
    for size, count in node.hugepages.items():
        name, total = hugepages_name(size), size * count
        reserved = config.reserved_on(node.id, name)
        amounts[name] = MemoryAmounts(total, reserved, total - reserved)
    in_pages = sum(amount.total for amount in amounts.values())
    reserved = config.reserved_on(node.id, "memory")
    amounts["memory"] = MemoryAmounts(node.memory_bytes, reserved, node.memory_bytes - reserved - in_pages)
    return amounts


def _text_of(problem: Problem) -> str:
    return f"{problem.error}{f' ({problem.detail})' if problem.detail else ''}"[:_LONGEST]


def _unparsed(text: bytes, _source: str) -> bytes:
    return text


def _text(file: StateFile[bytes]) -> bytes | None:
    """The contents of the file; None if the file cannot be read."""
    try:
        return file.read()
    except SourceError:
        return None
