"""Reads the CPUs, and their cores and uncore caches as the kubelet's cAdvisor computes them.

A core is what cAdvisor takes as a core (utils/sysinfo, getCoresInfo): the CPUs of a NUMA node with equal core_id and
physical_package_id. On most machines these are the threads of a core. On a board whose core_id restarts in each
cluster, CPUs of several clusters are one core, and the kubelet allocates them as one.

possible, present and online differ on machines with hotplug or `maxcpus=`. An offline CPU has neither a topology nor a
cache directory, so only online CPUs are described. L3 groups come from the cache's `shared_cpu_list`, never from its
id, which is missing or has gaps. Documentation/admin-guide/cputopology.rst,
Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import msgspec

from topowise import cpuset
from topowise_exporter.machine.inventory import Cpu
from topowise_exporter.machine.sysfs import Tree

ROOT = "devices/system/cpu"

_L3 = 3
_CACHE_FILES = frozenset(("id", "size", "level", "type", "shared_cpu_map"))
# The perf units of the two core types of a hybrid x86 (arch/x86/events/intel/core.c) list their CPUs.
_KINDS = ("core", "atom")


class CpuSets(msgspec.Struct, frozen=True, gc=False):
    online: frozenset[int]
    present: frozenset[int]
    possible: frozenset[int]
    offline: frozenset[int]
    isolated: frozenset[int]


class Ids(msgspec.Struct, frozen=True, gc=False):
    """The kernel's numbers of a CPU, -1 where the kernel does not know them."""

    socket: int
    die: int
    core_id: int


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


def read_ids(sysfs: Tree, online: frozenset[int]) -> dict[int, Ids]:
    """Returns the numbers of each online CPU that the kubelet knows.

    cAdvisor leaves out a CPU without core_id or physical_package_id. If no CPU has both, this is not the /sys that the
    kubelet reads: then each CPU counts as a core.
    """
    ids: dict[int, Ids] = {}
    unknown: list[int] = []
    for cpu in sorted(online):
        folder = f"{ROOT}/cpu{cpu}/topology"
        socket, core_id = sysfs.integer(f"{folder}/physical_package_id"), sysfs.integer(f"{folder}/core_id")
        if socket is None or core_id is None:
            unknown.append(cpu)
        else:
            die = sysfs.integer(f"{folder}/die_id")
            ids[cpu] = Ids(socket, -1 if die is None else die, core_id)
    if unknown:
        instead = "the kubelet leaves these CPUs out" if ids else "each CPU counts as a core"
        where = f"{ROOT}/cpu{{{cpuset.to_text(unknown)}}}/topology"
        sysfs.tell(where, "has no physical_package_id or no core_id", instead)
    return ids


def read(sysfs: Tree, online: frozenset[int], ids: Mapping[int, Ids], owners: Mapping[int, int]) -> tuple[Cpu, ...]:
    """Returns every online CPU, by id. `owners` has the NUMA node of each CPU that the kubelet knows."""
    cores = _cores(online, ids, owners)
    uncores = _read_uncores(sysfs, cores)
    caches = _read_caches(sysfs, online)
    kinds = {cpu: kind for kind in _KINDS for cpu in sysfs.cpus(f"devices/cpu_{kind}/cpus") or () if cpu in online}
    threads_of = {cpu: threads for _, threads in cores for cpu in threads}
    unknown = Ids(-1, -1, -1)
    return tuple(
        Cpu(
            id=cpu,
            node=owners.get(cpu, -1),
            socket=ids.get(cpu, unknown).socket,
            die=ids.get(cpu, unknown).die,
            core=threads_of[cpu][0],
            core_id=ids.get(cpu, unknown).core_id,
            threads=threads_of[cpu],
            l3=caches[cpu].cpus,
            l3_id=caches[cpu].id,
            uncore=uncores.get(cpu),
            kind=kinds.get(cpu, ""),
        )
        for cpu in sorted(online)
    )


def _cores(
    online: frozenset[int], ids: Mapping[int, Ids], owners: Mapping[int, int]
) -> list[tuple[int, tuple[int, ...]]]:
    """Returns the NUMA node and the CPUs of each core. A CPU without numbers or without NUMA node is a core alone."""
    threads: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(online):
        numbers, node = ids.get(cpu), owners.get(cpu, -1)
        key = (node, cpu) if numbers is None or node < 0 else (node, numbers.socket, numbers.core_id)
        threads.setdefault(key, []).append(cpu)
    return [(key[0], tuple(cpus)) for key, cpus in threads.items()]


def _read_uncores(sysfs: Tree, cores: Iterable[tuple[int, tuple[int, ...]]]) -> dict[int, int]:
    """Returns the uncore cache id of each CPU whose core has one (utils/sysinfo, addCacheInfo).

    cAdvisor reads the caches of a core's first thread, in the order of the directories' names (cpu10 before cpu2). A
    cache that a whole NUMA node shares is no cache of its cores. A cache with a missing file, also a cache of level 1
    or 2, ends the search of the NUMA node: its remaining cores have no cache.
    """
    by_node: dict[int, list[tuple[int, ...]]] = {}
    for node, threads in cores:
        by_node.setdefault(node, []).append(threads)
    uncores: dict[int, int] = {}
    for of_node in by_node.values():
        for threads in sorted(of_node, key=lambda threads: min(map(str, threads))):
            caches = _read_deep_caches(sysfs, int(min(map(str, threads))))
            if caches is None:
                break
            # The kubelet uses the first of them (cpumanager/topology, getUncoreCacheID).
            cache = next((number for number, count in caches if count != len(of_node) * len(threads)), None)
            if cache is not None:
                uncores.update(dict.fromkeys(threads, cache))
    return uncores


def _read_deep_caches(sysfs: Tree, cpu: int) -> list[tuple[int, int]] | None:
    """Returns (id, number of CPUs) of the caches above level 2; None if a file of any cache is missing."""
    folder = f"{ROOT}/cpu{cpu}/cache"
    names = sysfs.names(folder)
    if names is None:
        return None
    caches: list[tuple[int, int]] = []
    for index in sorted(name for name in names if name.startswith("index")):
        level = sysfs.integer(f"{folder}/{index}/level")
        if level is None or not _CACHE_FILES.issubset(sysfs.names(f"{folder}/{index}") or ()):
            return None
        if level > _L3 - 1:
            number = sysfs.integer(f"{folder}/{index}/id")
            shared = sysfs.cpus(masks=(f"{folder}/{index}/shared_cpu_map",))
            if number is None or shared is None:
                return None
            caches.append((number, len(shared)))
    return caches


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
