"""The empty node of an exact report: machine and configuration from the attributes' texts.

A node reports every few seconds, and what it is made of hardly ever changes. So it is known by the raw texts: the node
as a whole by its hardware and configuration, which a cluster has few of, and by its devices on top.

Invariant: what is known here lives as long as a report that is made of it. An object that changes all the time leaves
nothing behind, and takes nothing away from other nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from topowise import attributes, cpuset, kubeletconfig, nrt, quantity
from topowise.attributes import cores, devices
from topowise.errors import TopowiseError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.pods import HUGEPAGES, MAX_AMOUNT
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, KubeletStartError, Machine, NumaNode
from topowise_scheduler.kubelet.machine import WIDE
from topowise_scheduler.kubelet.versions import KubeletVersion
from topowise_scheduler.report import budget
from topowise_scheduler.report.costs import distances, speed
from topowise_scheduler.report.hugepages import page_kib
from topowise_scheduler.report.nrt_report import ReportError

_SPEED: Final = (attributes.MEMORY_INITIATORS, attributes.MEMORY_READ_LATENCY, attributes.MEMORY_READ_BANDWIDTH)


class ZoneFacts(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """What never changes of a zone; `amounts` are (resource, capacity, allocatable) as published, `speed` tells how
    fast its memory is: initiators, latency, bandwidth."""

    id: int
    cpus: str
    costs: tuple[nrt.Cost, ...]
    amounts: tuple[tuple[str, str | int, str | int], ...]
    speed: tuple[str, ...] = ()


class Facts(msgspec.Struct, frozen=True, cache_hash=True, weakref=True):
    """Raw texts that decide what the node is. Those that are too long are not `is_memorable`."""

    cores: str
    configuration: str
    zones: tuple[ZoneFacts, ...]
    is_memorable: bool = False


class Empty(NamedTuple):
    """The node with nothing held, None if the texts do not make one; `problems` say why, or what is odd."""

    kubelet: Kubelet | None
    problems: tuple[str, ...]


def facts_of(
    named: Mapping[str, str],
    zones: Sequence[tuple[int, tuple[nrt.Zone, Mapping[str, str]] | None]],
    before: Facts | None = None,
) -> Facts:
    """The texts, not yet looked at. `zones` come with their attributes by name; None is one that is as in `before`,
    which the node most likely has. Raises ReportError for one missing."""
    known = () if before is None else before.zones
    cores = text_of(named, attributes.CORES)
    configuration = text_of(named, attributes.KUBELET_CONFIGURATION)
    found = tuple(
        [
            known[position] if given is None else _zone_facts(numa_id, *given)
            for position, (numa_id, given) in enumerate(zones)
        ]
    )
    # Its hash is known, and that of a new one takes longer than to compare them.
    if before is not None and (before.cores, before.configuration, before.zones) == (cores, configuration, found):
        return before
    is_memorable = len(cores) + len(configuration) + sum(map(_length, found)) <= budget.MEMORABLE_FACTS
    return shared(Facts(cores, configuration, found, is_memorable))


def _zone_facts(numa_id: int, zone: nrt.Zone, named: Mapping[str, str]) -> ZoneFacts:
    return ZoneFacts(
        numa_id,
        text_of(named, attributes.ZONE_CPUS, zone.name),
        zone.costs or (),
        tuple(
            [
                (one.name, one.capacity, one.allocatable)
                for one in zone.resources or ()
                if one.name in ("cpu", "memory") or one.name.startswith(HUGEPAGES)
            ]
        ),
        tuple([named.get(name, "") for name in _SPEED]) if attributes.MEMORY_INITIATORS in named else (),
    )


def text_of(named: Mapping[str, str], attribute: str, zone: str = "") -> str:
    """The text of an attribute. Raises ReportError if there is none."""
    text = named.get(attribute)
    if text is None:
        raise ReportError(f"attribute {attribute}{zone and f' of zone {zone}'}: missing, expected with the others")
    return text


def shared(facts: Facts) -> Facts:
    """The same facts once for all nodes that have them: the texts come anew with each report."""
    if not facts.is_memorable:
        return facts
    return _facts.setdefault((facts.cores, facts.configuration, facts.zones), facts)


def empty(facts: Facts, listed_devices: str, version: KubeletVersion) -> Empty:
    """The node with these devices. Devices come and go with their health, the rest of the node stays the same."""
    if len(listed_devices) > budget.MEMORABLE_FACTS or not facts.is_memorable:
        return _made(facts, listed_devices, version)[0]
    key = facts, listed_devices, version
    known = _nodes.get(key)
    if known is not None:
        return Empty(known, _made_of[known].problems)
    made, bare = _made(facts, listed_devices, version)
    if made.kubelet is not None:
        _nodes[key], _made_of[made.kubelet] = made.kubelet, _MadeOf(made.problems, bare)
        _last.append(made.kubelet)
    return made


def _length(zone: ZoneFacts) -> int:
    return len(zone.cpus) + sum(map(len, zone.speed)) + 32 * (len(zone.costs) + len(zone.amounts))


class _MadeOf(NamedTuple):
    """What is odd about a node, and the same node without devices, which lives as long."""

    problems: tuple[str, ...]
    bare: Kubelet | None


_facts: WeakValueDictionary[tuple[object, ...], Facts] = WeakValueDictionary()
_nodes: WeakValueDictionary[tuple[object, ...], Kubelet] = WeakValueDictionary()
_made_of: WeakKeyDictionary[Kubelet, _MadeOf] = WeakKeyDictionary()
# The node that was made last: an object that differs from the report before is looked at twice (reader.py).
_last: deque[Kubelet] = deque(maxlen=1)


def _made(facts: Facts, listed_devices: str, version: KubeletVersion) -> tuple[Empty, Kubelet | None]:
    """The node with these devices, and without."""
    try:
        plugins = _plugins(listed_devices) if listed_devices else ()
        # Which NUMA nodes of many are modelled goes by the devices near them (Machine.modelled).
        near = plugins if len(facts.zones) > WIDE else ()
        bare = _bare(facts, near, version)
        if bare.kubelet is None or not plugins:
            return bare, None
        kubelet = bare.kubelet.fork()
        for plugin in plugins:
            kubelet.report_devices(plugin.resource, plugin.devices)
    except (TopowiseError, ValueError) as exc:
        return Empty(None, (str(exc),)), None
    return Empty(kubelet, bare.problems), bare.kubelet


def _plugins(listed_devices: str) -> tuple[DevicePlugin, ...]:
    """Raises ParseError, and ReportError for too many."""
    names, count = devices.names(listed_devices), devices.count(listed_devices)
    if not budget.are_few(names) or count > budget.MAX_ALL_DEVICES:
        raise ReportError(
            f"attribute {attributes.DEVICES}: {count} devices of {len(names)} resources, expected up to "
            f"{budget.MAX_ALL_DEVICES} of {budget.MAX_NAMES} with names of up to {budget.LONGEST_NAME} characters"
        )
    by_resource: dict[str, list[Device]] = {resource: [] for resource in names}
    for one in devices.read(listed_devices):
        by_resource[one.resource].append(Device(one.id, one.nodes or None))
    return tuple(DevicePlugin(resource, tuple(reported)) for resource, reported in by_resource.items())


def _bare(facts: Facts, near: tuple[DevicePlugin, ...], version: KubeletVersion) -> Empty:
    """The node without devices, which may be near some of its NUMA nodes."""
    key = (facts, near, version) if facts.is_memorable else ()
    known = _nodes.get(key)
    if known is not None:
        return Empty(known, _made_of[known].problems)
    made = _started(facts, near, version)
    if made.kubelet is not None and key:
        _nodes[key], _made_of[made.kubelet] = made.kubelet, _MadeOf(made.problems, None)
    return made


def _started(facts: Facts, near: tuple[DevicePlugin, ...], version: KubeletVersion) -> Empty:
    """What a kubelet makes of the machine at its start."""
    try:
        config = kubeletconfig.decode(facts.configuration)
        _check_few(facts, config)
        amounts = [_amounts(zone) for zone in facts.zones]
        machine = msgspec.structs.replace(_machine(facts, config, amounts), devices=near)
        kubelet = Kubelet(machine, _resolved(config, facts), version=version)
    except KubeletStartError as exc:
        return Empty(None, (f"attribute {attributes.KUBELET_CONFIGURATION}: no kubelet would start with it: {exc}",))
    except (TopowiseError, ValueError) as exc:
        return Empty(None, (str(exc),))
    return Empty(kubelet, tuple(_odd_counts(kubelet, facts, amounts)))


def _check_few(facts: Facts, config: KubeletConfiguration) -> None:
    """Raises ReportError for more sizes of pages, or reservations, than a machine has."""
    sizes = {name for zone in facts.zones for name, _, _ in zone.amounts if name.startswith(HUGEPAGES)}
    for thing, count, most in (
        ("zones: sizes of hugepages", len(sizes), budget.MAX_PAGE_SIZES),
        (
            f"attribute {attributes.KUBELET_CONFIGURATION}: entries of reservedMemory",
            len(config.reservedMemory or ()),
            budget.MAX_RESERVATIONS,
        ),
    ):
        if count > most:
            raise ReportError(f"{thing}: {count}, expected up to {most}")


def _amounts(zone: ZoneFacts) -> dict[str, tuple[int, int]]:
    """Capacity and allocatable by resource. Raises ParseError, and ReportError without memory, or with too much."""
    amounts = {
        name: (quantity.for_resource(name, capacity), quantity.for_resource(name, allocatable))
        for name, capacity, allocatable in zone.amounts
    }
    for name, both in amounts.items():
        if max(map(abs, both)) > MAX_AMOUNT:
            raise ReportError(f"zone {nrt.zone_name(zone.id)}: {max(both)} of {name!r:.80}, expected at most 2^53")
    if "memory" not in amounts:
        raise ReportError(f"zone {nrt.zone_name(zone.id)}: lists no memory, expected its capacity")
    return amounts


def _machine(facts: Facts, config: KubeletConfiguration, amounts: list[dict[str, tuple[int, int]]]) -> Machine:
    owner: dict[int, int] = {}
    count = 0
    for position, zone in enumerate(facts.zones):
        mine = cpuset.parse(zone.cpus)
        count += len(mine)
        if count > budget.MAX_ALL_CPUS:
            raise ReportError(f"attribute {attributes.ZONE_CPUS}: more than {budget.MAX_ALL_CPUS} CPUs in all zones")
        owner.update(dict.fromkeys(mine, position))
    of_zone: list[list[Core]] = [[] for _ in facts.zones]
    for core in cores.read(facts.cores):
        # As the kubelet does, by node: the threads of a core that the kernel shows on two nodes are two cores.
        threads: dict[int, list[int]] = {}
        for cpu in core.threads:
            if cpu in owner:
                threads.setdefault(owner.pop(cpu), []).append(cpu)
        for position, together in threads.items():
            of_zone[position].append(Core(core.socket, tuple(together), core.uncore))
    if owner:
        raise ReportError(f"attribute {attributes.CORES}: CPUs {cpuset.spell(owner)} of the zones are in no core of it")
    ids = [zone.id for zone in facts.zones]
    return Machine(
        numa=tuple(
            _node(zone, config, tuple(mine), known, ids)
            for zone, mine, known in zip(facts.zones, of_zone, amounts, strict=True)
        )
    )


def _node(
    zone: ZoneFacts,
    config: KubeletConfiguration,
    of_zone: tuple[Core, ...],
    amounts: Mapping[str, tuple[int, int]],
    ids: list[int],
) -> NumaNode:
    """A node with the memory that the kubelet gives out.

    The memory manager goes on with what it saw at its start; pages that were added or taken since are in the capacity
    alone. So what it had follows from what it may give and what it keeps (memorymanager/policy_static.go).
    """
    pages: dict[int, int] = {}
    in_pages = 0
    for name, known in amounts.items():
        kib = page_kib(name)
        if kib is not None:
            pages[kib] = _given_out(config, known, config.reserved_on(zone.id, name)) // (kib * 1024)
            in_pages += pages[kib] * kib * 1024
    memory = _given_out(config, amounts["memory"], config.reserved_on(zone.id, "memory") + in_pages)
    return NumaNode(zone.id, memory, of_zone, pages, distances(zone.costs, ids), *speed(zone.speed, ids))


def _given_out(config: KubeletConfiguration, known: tuple[int, int], kept: int) -> int:
    """The bytes the memory manager started with: what it may give and what it keeps, at most all if it gives none."""
    capacity, allocatable = known
    if config.memoryManagerPolicy != "Static":
        return capacity
    return allocatable + kept if allocatable > 0 else min(capacity, kept)


def _resolved(config: KubeletConfiguration, facts: Facts) -> KubeletConfiguration:
    """A share of memory.available as an amount: it is of /proc/meminfo's MemTotal, which no zone has.

    A kubelet with memory manager Static runs only if reservedMemory sums up to all that is kept, so the threshold is
    what the sum has beyond the other reservations.
    """
    thresholds = config.evictionHard or {}
    if config.memoryManagerPolicy != "Static" or not thresholds.get("memory.available", "").endswith("%"):
        return config
    by_node = sum(config.reserved_on(zone.id, "memory") for zone in facts.zones)
    threshold = by_node - config.reserved({}).get("memory", 0)
    others = {signal: text for signal, text in thresholds.items() if signal != "memory.available"}
    if threshold > 0:
        others["memory.available"] = str(threshold)
    return msgspec.structs.replace(config, evictionHard=others)


def _odd_counts(kubelet: Kubelet, facts: Facts, amounts: list[dict[str, tuple[int, int]]]) -> list[str]:
    """CPUs that came or went since the kubelet started, or that it keeps for the system by a choice of its own."""
    if kubelet.cpu is None:
        return []
    found = []
    usable = kubelet.topology.cpus & ~kubelet.cpu.policy.reserved
    for zone, zone_amounts in zip(facts.zones, amounts, strict=True):
        position = kubelet.devices.positions.get(zone.id)
        if position is None:
            continue
        expected = 1000 * (kubelet.topology.numa_cpus[position] & usable).bit_count()
        _, reported = zone_amounts.get("cpu", (expected, expected))
        if reported != expected:
            found.append(
                f"zone {nrt.zone_name(zone.id)}: {quantity.from_milli(reported)} CPUs are allocatable, expected "
                f"{quantity.from_milli(expected)} by cores and configuration; what is free is taken as published"
            )
    return found
