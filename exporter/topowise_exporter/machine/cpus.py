"""Reads the CPUs, and which cores, packages and L3 caches they share.

possible, present and online differ on machines with hotplug or `maxcpus=`. An offline CPU has neither a topology nor a
cache directory, so only online CPUs are described. Threads of a core share package, die and core id, and CPUs of an L3
cache share its CPU list: reading the first CPU of each group is enough. Cores come from the sibling lists, never from
`core_id`, which repeats in each package. L3 groups come from the cache's `shared_cpu_list`, never from its id, which is
missing or has gaps. Documentation/admin-guide/cputopology.rst, Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import msgspec

from topowise import cpuset
from topowise_exporter.machine.inventory import Cpu
from topowise_exporter.machine.sysfs import Tree

ROOT = "devices/system/cpu"

_L3 = 3
# The perf units of the two core types of a hybrid x86 (arch/x86/events/intel/core.c) list their CPUs.
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
    """Returns the kernel's sets of CPUs; a file that an old kernel lacks is derived from the others."""
    directories = frozenset(sysfs.numbered(ROOT, "cpu"))
    online = sysfs.cpus(f"{ROOT}/online", instead="the CPUs not switched off are used")
    if not online:
        # A CPU that cannot go offline (often cpu0) has no file `online`.
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
    """Returns every online CPU, by id."""
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
    coreless: list[int] = []
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
            coreless.append(cpu)
            siblings = frozenset((cpu,))
        core = _Core(
            socket=_id(sysfs, f"{folder}/physical_package_id"),
            die=_id(sysfs, f"{folder}/die_id"),
            core_id=_id(sysfs, f"{folder}/core_id"),
            # Every CPU belongs to one core: a damaged list must not take a thread from a core that was read before.
            threads=tuple(sorted(thread for thread in siblings & online if thread not in cores)),
        )
        cores.update(dict.fromkeys(core.threads, core))
    if coreless:
        where = f"{ROOT}/cpu{{{cpuset.to_text(coreless)}}}/topology"
        sysfs.tell(where, "no list of siblings contains the CPU itself", "each CPU counts as a core")
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
    # Nearly always index3. But an index is only the order of discovery: a core with one L1 cache has its L3 at index2.
    for index in sorted(sysfs.numbered(folder, "index"), key=lambda index: (index != _L3, index)):
        if sysfs.integer(f"{folder}/index{index}/level") == _L3:
            shared = sysfs.cpus(
                f"{folder}/index{index}/shared_cpu_list", masks=(f"{folder}/index{index}/shared_cpu_map",)
            )
            members = (shared or frozenset()) & free | {cpu}
            return _Cache(cpus=tuple(sorted(members)), id=sysfs.integer(f"{folder}/index{index}/id"))
    return _Cache(cpus=None, id=None)
