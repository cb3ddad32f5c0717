"""Builds the empty node of an exact report, machine and configuration, from the attributes' texts.

A node reports every few seconds, and its hardware hardly ever changes. So nodes are cached by the raw texts, at two
levels: by hardware and configuration, and by the list of devices in addition. A cluster has few of the former.

Invariant: a cache entry lives as long as a report that was built from it. An object that changes all the time leaves no
entries behind, and evicts no entries of other nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from topowise import attributes, cpuset, kubeletconfig, nrt, quantity
from topowise.attributes import cores, devices
from topowise.errors import TopowiseError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.pods import HUGEPAGES, MAX_AMOUNT
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, KubeletStartError, Machine, NumaNode
from topowise_scheduler.kubelet.configuration import Evidence
from topowise_scheduler.kubelet.machine import WIDE
from topowise_scheduler.kubelet.versions import KubeletVersion
from topowise_scheduler.report import budget
from topowise_scheduler.report.nrt_report import ReportError
from topowise_scheduler.report.texts import distances, page_kib, speed

_SPEED: Final = (attributes.MEMORY_INITIATORS, attributes.MEMORY_READ_LATENCY, attributes.MEMORY_READ_BANDWIDTH)


class ZoneFacts(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """The constant part of a zone. `amounts` are (resource, capacity, allocatable) as published; `speed` is the
    measured speed of its memory: initiators, latency, bandwidth."""

    id: int
    cpus: str
    costs: tuple[nrt.Cost, ...]
    amounts: tuple[tuple[str, str | int, str | int], ...]
    speed: tuple[str, ...] = ()


class Facts(msgspec.Struct, frozen=True, cache_hash=True, weakref=True):
    """The raw texts that determine the node. Texts that are too long are not `is_memorable`."""

    cores: str
    configuration: str
    zones: tuple[ZoneFacts, ...]
    is_memorable: bool = False


class Empty(NamedTuple):
    """The node without pods, None if the texts do not describe a valid node; `problems` are faults and oddities."""

    kubelet: Kubelet | None
    problems: tuple[str, ...]


def facts_of(
    named: Mapping[str, str],
    zones: Sequence[tuple[int, tuple[nrt.Zone, Mapping[str, str]] | None]],
    before: Facts | None = None,
) -> Facts:
    """Returns the node's texts, unparsed. `zones` have their attributes by name; a zone that is None is unchanged since
    `before`. Raises ReportError for a missing text."""
    previous = () if before is None else before.zones
    cores = text_of(named, attributes.CORES)
    configuration = text_of(named, attributes.KUBELET_CONFIGURATION)
    zone_facts = tuple(
        [
            previous[position] if entry is None else _zone_facts(numa_id, *entry)
            for position, (numa_id, entry) in enumerate(zones)
        ]
    )
    # The hash of `before` is cached; hashing a new object takes longer than this comparison.
    if before is not None and (before.cores, before.configuration, before.zones) == (cores, configuration, zone_facts):
        return before
    is_memorable = len(cores) + len(configuration) + sum(map(_text_length, zone_facts)) <= budget.MEMORABLE_FACTS
    return shared(Facts(cores, configuration, zone_facts, is_memorable))


def _zone_facts(numa_id: int, zone: nrt.Zone, named: Mapping[str, str]) -> ZoneFacts:
    return ZoneFacts(
        numa_id,
        text_of(named, attributes.ZONE_CPUS, zone.name),
        zone.costs or (),
        tuple(
            [
                (entry.name, entry.capacity, entry.allocatable)
                for entry in zone.resources or ()
                if entry.name in ("cpu", "memory") or entry.name.startswith(HUGEPAGES)
            ]
        ),
        tuple([named.get(name, "") for name in _SPEED]) if attributes.MEMORY_INITIATORS in named else (),
    )


def text_of(named: Mapping[str, str], attribute: str, zone: str = "") -> str:
    """Returns the text of an attribute. Raises ReportError if it is missing."""
    text = named.get(attribute)
    if text is None:
        raise ReportError(f"attribute {attribute}{zone and f' of zone {zone}'}: missing, expected with the others")
    return text


def shared(facts: Facts) -> Facts:
    """Returns the cached equal facts, so that nodes with equal texts share an object."""
    if not facts.is_memorable:
        return facts
    return _facts.setdefault((facts.cores, facts.configuration, facts.zones), facts)


def empty(facts: Facts, listed_devices: str, version: KubeletVersion) -> Empty:
    """Returns the node with these devices. Devices change with their health; the rest of the node stays cached."""
    if len(listed_devices) > budget.MEMORABLE_FACTS or not facts.is_memorable:
        # Long texts are not cached: a hostile object must not fill the cache.
        return _build(facts, listed_devices, version)[0]
    key = facts, listed_devices, version
    cached = _kubelets.get(key)
    if cached is not None:
        return Empty(cached, _origins[cached].problems)
    node, base = _build(facts, listed_devices, version)
    if node.kubelet is not None:
        _kubelets[key], _origins[node.kubelet] = node.kubelet, _Origin(node.problems, base)
        # Weak references alone would drop the kubelet before the second reading.
        _recent.append(node.kubelet)
    return node


def _text_length(zone: ZoneFacts) -> int:
    # About 32 characters per cost and amount.
    return len(zone.cpus) + sum(map(len, zone.speed)) + 32 * (len(zone.costs) + len(zone.amounts))


class _Origin(NamedTuple):
    """The problems of a cached kubelet, and the same node without devices, which is kept alive with it."""

    problems: tuple[str, ...]
    base: Kubelet | None


_facts: WeakValueDictionary[tuple[object, ...], Facts] = WeakValueDictionary()
_kubelets: WeakValueDictionary[tuple[object, ...], Kubelet] = WeakValueDictionary()
_origins: WeakKeyDictionary[Kubelet, _Origin] = WeakKeyDictionary()
# Keeps the newest kubelet alive: reader.py may read one object twice, and no report refers to the kubelet in between.
_recent: deque[Kubelet] = deque(maxlen=1)


def _build(facts: Facts, listed_devices: str, version: KubeletVersion) -> tuple[Empty, Kubelet | None]:
    """Returns the node with these devices, and without."""
    try:
        plugins = _parse_plugins(listed_devices) if listed_devices else ()
        # On a machine with many NUMA nodes, the devices decide which NUMA nodes are modelled (Machine.modelled).
        near = plugins if len(facts.zones) > WIDE else ()
        base = _without_devices(facts, near, version)
        if base.kubelet is None or not plugins:
            return base, None
        kubelet = base.kubelet.fork()
        for plugin in plugins:
            kubelet.report_devices(plugin.resource, plugin.devices)
    except (TopowiseError, ValueError) as exc:
        return Empty(None, (str(exc),)), None
    return Empty(kubelet, base.problems), base.kubelet


def _parse_plugins(listed_devices: str) -> tuple[DevicePlugin, ...]:
    """Returns the device plugins. Raises ParseError, and ReportError for too many devices or names."""
    names, count = devices.names(listed_devices), devices.count(listed_devices)
    if not budget.are_few(names) or count > budget.MAX_ALL_DEVICES:
        raise ReportError(
            f"attribute {attributes.DEVICES}: {count} devices of {len(names)} resources, expected up to "
            f"{budget.MAX_ALL_DEVICES} of {budget.MAX_NAMES} with names of up to {budget.LONGEST_NAME} characters"
        )
    # In the order of their names: two replicas explain a refusal in the same words.
    by_resource: dict[str, list[Device]] = {resource: [] for resource in sorted(names)}
    for device in devices.read(listed_devices):
        by_resource[device.resource].append(Device(device.id, device.nodes or None))
    return tuple(DevicePlugin(resource, tuple(reported)) for resource, reported in by_resource.items())


def _without_devices(facts: Facts, near: tuple[DevicePlugin, ...], version: KubeletVersion) -> Empty:
    """Returns the node without devices. `near` only decides which NUMA nodes are modelled."""
    key = (facts, near, version) if facts.is_memorable else ()
    cached = _kubelets.get(key)
    if cached is not None:
        return Empty(cached, _origins[cached].problems)
    node = _start(facts, near, version)
    if node.kubelet is not None and key:
        _kubelets[key], _origins[node.kubelet] = node.kubelet, _Origin(node.problems, None)
    return node


def _start(facts: Facts, near: tuple[DevicePlugin, ...], version: KubeletVersion) -> Empty:
    """Returns the node as a kubelet builds it at its start."""
    try:
        config = kubeletconfig.decode(facts.configuration)
        _check_limits(facts, config)
        amounts = [_amounts(zone) for zone in facts.zones]
        kubelet = _kubelet(facts, config, near, version, "runs")
    except KubeletStartError as exc:
        return Empty(None, (f"attribute {attributes.KUBELET_CONFIGURATION}: no kubelet would start with it: {exc}",))
    except (TopowiseError, ValueError) as exc:
        return Empty(None, (str(exc),))
    return Empty(kubelet, tuple(_cpu_problems(kubelet, facts, amounts)))


def changed(facts: Facts, listed_devices: str, version: KubeletVersion, fields: Mapping[str, Any]) -> Kubelet:
    """Returns the node without pods, with another version and other fields of its configuration.

    Raises KubeletStartError if such a kubelet does not start, and TopowiseError or ValueError for unreadable texts.
    """
    config = msgspec.structs.replace(kubeletconfig.decode(facts.configuration), **fields)
    return _kubelet(facts, config, _parse_plugins(listed_devices) if listed_devices else (), version, "none")


def machine_and_configuration(facts: Facts, listed_devices: str) -> tuple[Machine, KubeletConfiguration]:
    """Returns the machine with its devices, and the configuration of its kubelet, as the model uses both.

    Raises TopowiseError or ValueError for unreadable texts.
    """
    config = kubeletconfig.decode(facts.configuration)
    plugins = _parse_plugins(listed_devices) if listed_devices else ()
    machine = _machine(facts, config, [_amounts(zone) for zone in facts.zones])
    return msgspec.structs.replace(machine, devices=plugins), _with_absolute_threshold(config, facts)


def _kubelet(
    facts: Facts,
    config: KubeletConfiguration,
    plugins: tuple[DevicePlugin, ...],
    version: KubeletVersion,
    evidence: Evidence,
) -> Kubelet:
    machine = _machine(facts, config, [_amounts(zone) for zone in facts.zones])
    config = _with_absolute_threshold(config, facts)
    return Kubelet(msgspec.structs.replace(machine, devices=plugins), config, version=version, evidence=evidence)


def _check_limits(facts: Facts, config: KubeletConfiguration) -> None:
    """Raises ReportError for more page sizes, or more reservations, than a machine has."""
    sizes = {name for zone in facts.zones for name, _, _ in zone.amounts if name.startswith(HUGEPAGES)}
    reservations = f"attribute {attributes.KUBELET_CONFIGURATION}: entries of reservedMemory"
    for noun, count, limit in (
        ("zones: sizes of hugepages", len(sizes), budget.MAX_PAGE_SIZES),
        (reservations, len(config.reservedMemory or ()), budget.MAX_RESERVATIONS),
    ):
        if count > limit:
            raise ReportError(f"{noun}: {count}, expected up to {limit}")


def _amounts(zone: ZoneFacts) -> dict[str, tuple[int, int]]:
    """Returns capacity and allocatable by resource. Raises ParseError, and ReportError for a bad memory size."""
    amounts = {
        name: (quantity.for_resource(name, capacity), quantity.for_resource(name, allocatable))
        for name, capacity, allocatable in zone.amounts
    }
    for name, pair in amounts.items():
        if max(map(abs, pair)) > MAX_AMOUNT:
            raise ReportError(f"zone {nrt.zone_name(zone.id)}: {max(pair)} of {name!r:.80}, expected at most 2^53")
    if "memory" not in amounts:
        raise ReportError(f"zone {nrt.zone_name(zone.id)}: lists no memory, expected its capacity")
    return amounts


def _machine(facts: Facts, config: KubeletConfiguration, amounts: list[dict[str, tuple[int, int]]]) -> Machine:
    node_of_cpu: dict[int, int] = {}
    count = 0
    for position, zone in enumerate(facts.zones):
        zone_cpus = cpuset.parse(zone.cpus)
        # Summed before the cores are built: a cpulist such as 0-65535 is short, but costs memory.
        count += len(zone_cpus)
        if count > budget.MAX_ALL_CPUS:
            raise ReportError(f"attribute {attributes.ZONE_CPUS}: more than {budget.MAX_ALL_CPUS} CPUs in all zones")
        node_of_cpu.update(dict.fromkeys(zone_cpus, position))
    cores_by_zone: list[list[Core]] = [[] for _ in facts.zones]
    for core in cores.read(facts.cores):
        # The kubelet groups CPUs by NUMA node first. If the kernel shows the threads of a core on two NUMA nodes, they
        # are two cores.
        threads: dict[int, list[int]] = {}
        for cpu in core.threads:
            if cpu in node_of_cpu:
                # Removed, so that a CPU in two cores counts once, and CPUs without a core remain.
                threads.setdefault(node_of_cpu.pop(cpu), []).append(cpu)
        for position, cpus in threads.items():
            cores_by_zone[position].append(Core(core.socket, tuple(cpus), core.uncore))
    if node_of_cpu:
        cpus_text = cpuset.to_text(node_of_cpu)
        raise ReportError(f"attribute {attributes.CORES}: CPUs {cpus_text} of the zones are in no core")
    ids = [zone.id for zone in facts.zones]
    return Machine(
        numa=tuple(
            _node(zone, config, tuple(zone_cores), zone_amounts, ids)
            for zone, zone_cores, zone_amounts in zip(facts.zones, cores_by_zone, amounts, strict=True)
        )
    )


def _node(
    zone: ZoneFacts,
    config: KubeletConfiguration,
    zone_cores: tuple[Core, ...],
    amounts: Mapping[str, tuple[int, int]],
    ids: list[int],
) -> NumaNode:
    """Returns a NUMA node with the memory that the kubelet manages.

    The memory manager keeps the amounts that it read at its start; pages that are added or removed later change only
    the capacity. So the amount at the start is the sum of the allocatable and the reserved amount
    (memorymanager/policy_static.go, getDefaultMachineState).
    """
    pages: dict[int, int] = {}
    in_pages = 0
    for name, listed in amounts.items():
        kib = page_kib(name)
        if kib is not None:
            pages[kib] = _managed_bytes(config, listed, config.reserved_on(zone.id, name)) // (kib * 1024)
            in_pages += pages[kib] * kib * 1024
    memory = _managed_bytes(config, amounts["memory"], config.reserved_on(zone.id, "memory") + in_pages)
    return NumaNode(zone.id, memory, zone_cores, pages, distances(zone.costs, ids), *speed(zone.speed, ids))


def _managed_bytes(config: KubeletConfiguration, amounts: tuple[int, int], reserved: int) -> int:
    """Returns the bytes at the memory manager's start: allocatable plus reserved."""
    capacity, allocatable = amounts
    if config.memoryManagerPolicy != "Static":
        return capacity
    # Allocatable 0 does not show how much less than the reserved bytes the node had.
    return allocatable + reserved if allocatable > 0 else min(capacity, reserved)


def _with_absolute_threshold(config: KubeletConfiguration, facts: Facts) -> KubeletConfiguration:
    """Returns the configuration with an absolute threshold for memory.available instead of a percentage.

    The percentage is of MemTotal in /proc/meminfo, which no zone has. A kubelet with the Static memory manager starts
    only if reservedMemory equals the sum of all reservations. So the threshold is that sum less the other reservations.
    """
    thresholds = config.evictionHard or {}
    if config.memoryManagerPolicy != "Static" or not thresholds.get("memory.available", "").endswith("%"):
        return config
    by_node = sum(config.reserved_on(zone.id, "memory") for zone in facts.zones)
    threshold = by_node - config.reserved({}).get("memory", 0)
    thresholds_left = {signal: text for signal, text in thresholds.items() if signal != "memory.available"}
    if threshold > 0:
        thresholds_left["memory.available"] = str(threshold)
    return msgspec.structs.replace(config, evictionHard=thresholds_left)


def _cpu_problems(kubelet: Kubelet, facts: Facts, amounts: list[dict[str, tuple[int, int]]]) -> list[str]:
    """Returns a line for each zone whose allocatable CPUs differ from cores and configuration.

    CPUs came or went since the kubelet started, or the kubelet chose its reserved CPUs itself.
    """
    if kubelet.cpu is None:
        return []
    problems = []
    usable = kubelet.topology.cpus & ~kubelet.cpu.policy.reserved
    for zone, zone_amounts in zip(facts.zones, amounts, strict=True):
        position = kubelet.devices.positions.get(zone.id)
        if position is None:
            # Not modelled, so it has no CPUs (Machine.modelled).
            continue
        # Milli-CPUs.
        expected = 1000 * (kubelet.topology.numa_cpus[position] & usable).bit_count()
        _, reported = zone_amounts.get("cpu", (expected, expected))
        if reported != expected:
            problems.append(
                f"zone {nrt.zone_name(zone.id)}: {quantity.from_milli(reported)} CPUs are allocatable, expected "
                f"{quantity.from_milli(expected)} by cores and configuration; free CPUs are used as published"
            )
    return problems
