"""Which CPUs there are, and how they share cores, packages and L3 caches.

possible, present and online all differ on machines with hotplug or `maxcpus=`, and an offline CPU has neither topology
nor cache directory, so only online ones are described. Threads of one core share package, die and core id, and CPUs of
one L3 share its list: reading the first of each group is enough.
Cores come from the sibling lists, never from `core_id`, which repeats in each package; L3 groups from the cache's
`shared_cpu_list`, never from its id, which is missing or has gaps.
Documentation/admin-guide/cputopology.rst, Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import msgspec

from topowise import cpuset
from topowise_exporter.machine.inventory import Cpu
from topowise_exporter.machine.sysfs import Tree

ROOT = "devices/system/cpu"

_L3 = 3
# The perf units of the two kinds of cores of a hybrid x86 (arch/x86/events/intel/core.c) list their CPUs.
_KINDS = ("core", "atom")


class CpuSets(msgspec.Struct, frozen=True, gc=False):
    online: frozenset[int]
    present: frozenset[int]
    possible: frozenset[int]
    offline: frozenset[int]
    isolated: frozenset[int]


class _Core(msgspec.Struct, frozen=True, gc=False):
    socket: int
    die: int
    core_id: int
    threads: tuple[int, ...]


class _Cache(msgspec.Struct, frozen=True, gc=False):
    cpus: tuple[int, ...] | None
    id: int | None


def read_sets(sysfs: Tree) -> CpuSets:
    """The kernel's sets of CPUs; a file an old kernel lacks is made up from the others."""
    directories = frozenset(sysfs.numbered(ROOT, "cpu"))
    online = sysfs.cpus(f"{ROOT}/online", instead="the CPUs not switched off are used")
    if not online:
        # A CPU that cannot be switched off (often cpu0) has no file `online`.
        online = frozenset(cpu for cpu in directories if sysfs.text(f"{ROOT}/cpu{cpu}/online") != "0")
    present = sysfs.cpus(f"{ROOT}/present") or directories | online
    possible = sysfs.cpus(f"{ROOT}/possible") or present
    offline = sysfs.cpus(f"{ROOT}/offline")
    return CpuSets(
        online=online,
        present=present,
        possible=possible,
        offline=possible - online if offline is None else offline,
        isolated=sysfs.cpus(f"{ROOT}/isolated") or frozenset(),
    )


def read(sysfs: Tree, online: frozenset[int], owners: Mapping[int, int]) -> tuple[Cpu, ...]:
    """Every online CPU, by id."""
    cores = _read_cores(sysfs, online)
    caches = _read_caches(sysfs, online)
    kinds = {cpu: kind for kind in _KINDS for cpu in sysfs.cpus(f"devices/cpu_{kind}/cpus") or () if cpu in online}
    return tuple(
        Cpu(
            id=cpu,
            node=owners.get(cpu, -1),
            socket=cores[cpu].socket,
            die=cores[cpu].die,
            core=cores[cpu].threads[0],
            core_id=cores[cpu].core_id,
            threads=cores[cpu].threads,
            l3=caches[cpu].cpus,
            l3_id=caches[cpu].id,
            kind=kinds.get(cpu, ""),
        )
        for cpu in sorted(online)
    )


def _read_cores(sysfs: Tree, online: frozenset[int]) -> dict[int, _Core]:
    cores: dict[int, _Core] = {}
    alone: list[int] = []
    for cpu in sorted(online):
        if cpu in cores:
            continue
        folder = f"{ROOT}/cpu{cpu}/topology"
        siblings = sysfs.cpus(
            f"{folder}/core_cpus_list",
            f"{folder}/thread_siblings_list",
            masks=(f"{folder}/core_cpus", f"{folder}/thread_siblings"),
        )
        if siblings is None or cpu not in siblings:
            alone.append(cpu)
            siblings = frozenset((cpu,))
        core = _Core(
            socket=_id(sysfs, f"{folder}/physical_package_id"),
            die=_id(sysfs, f"{folder}/die_id"),
            core_id=_id(sysfs, f"{folder}/core_id"),
            # Never take a thread away from a core that was read before: every CPU belongs to one core.
            threads=tuple(sorted(thread for thread in siblings & online if thread not in cores)),
        )
        cores.update(dict.fromkeys(core.threads, core))
    if alone:
        where = f"{ROOT}/cpu{{{cpuset.spell(alone)}}}/topology"
        sysfs.tell(where, "no list of siblings that names the CPU itself", "each is a core of its own")
    return cores


def _id(sysfs: Tree, path: str) -> int:
    number = sysfs.integer(path)
    return -1 if number is None else number


def _read_caches(sysfs: Tree, online: frozenset[int]) -> dict[int, _Cache]:
    caches: dict[int, _Cache] = {}
    free = set(online)
    for cpu in sorted(online):
        if cpu not in caches:
            cache = _read_l3(sysfs, cpu, free)
            caches.update(dict.fromkeys(cache.cpus or (cpu,), cache))
            free.difference_update(cache.cpus or (cpu,))
    return caches


def _read_l3(sysfs: Tree, cpu: int, free: Set[int]) -> _Cache:
    folder = f"{ROOT}/cpu{cpu}/cache"
    # Nearly always index3, but an index is only the order of discovery: a core with one L1 cache has its L3 at index2.
    for index in sorted(sysfs.numbered(folder, "index"), key=lambda index: (index != _L3, index)):
        if sysfs.integer(f"{folder}/index{index}/level") == _L3:
            shared = sysfs.cpus(
                f"{folder}/index{index}/shared_cpu_list", masks=(f"{folder}/index{index}/shared_cpu_map",)
            )
            members = (shared or frozenset()) & free | {cpu}
            return _Cache(cpus=tuple(sorted(members)), id=sysfs.integer(f"{folder}/index{index}/id"))
    return _Cache(cpus=None, id=None)
