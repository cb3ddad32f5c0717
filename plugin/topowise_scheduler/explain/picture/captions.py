"""Captions and tooltips of the picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topowise import cpuset
from topowise.quantity import human_bytes
from topowise_scheduler.explain.picture.contents import Device, Memory, Owner, Picture, Share, Thread, Zone
from topowise_scheduler.explain.text import plural

STATES: Final = {
    "free": "free",
    "shared": "shared by all pods",
    "reserved": "reserved for the system",
    "hugepages": "made into hugepages",
    "joint": "allocated to several pods",
    "exclusive": "allocated, owner unknown",
    "offline": "offline",
    "unhealthy": "unhealthy device",
}
"""The fills of boxes that do not belong to a single pod, in the order of the key."""

_MOST_SUMMANDS: Final = 8

_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def tag(owner: int) -> str:
    """A tag of a pod: 0 -> "A", 26 -> "a", 52 -> "AA"."""
    count = len(_LETTERS)
    return _LETTERS[owner] if owner < count else tag(owner // count - 1) + _LETTERS[owner % count]


def tags(owners: Sequence[int]) -> str:
    """The tags of several pods."""
    return "+".join(map(tag, owners))


def about(picture: Picture) -> list[str]:
    """The facts under the name of the node."""
    threads = [thread for zone in picture.zones for thread in zone.threads]
    facts = [f"policy {picture.policy}", f"scope {picture.scope}"]
    bare = f", {len(picture.bare)} of them with nothing (not drawn)" if picture.bare else ""
    facts.append(f"{plural(len(picture.zones) + len(picture.bare), 'NUMA node')}{bare}")
    facts.append(f"{plural(len(threads), 'CPU')}, {_free_cpus(threads) or 'shared by all pods'}")
    if picture.distances is not None and 1 < len(picture.zones) <= _MOST_SUMMANDS:
        facts.append(f"distances {', '.join(' '.join(map(str, row)) for row in picture.distances)}")
    facts.append("exact" if picture.precision == "exact" else "counts only, no CPU or device is known by its id")
    return [*facts, picture.age] if picture.age else facts


def label(picture: Picture) -> str:
    """The text alternative of the picture."""
    pods = plural(len(picture.owners), "pod")
    return f"{picture.node}: {', '.join(about(picture))}; {pods} with CPUs, memory or devices of their own"


def cpus_caption(zone: Zone) -> tuple[str, str, str]:
    """The CPUs of the zone with and without ids, and how many are free."""
    ids = cpuset.to_text(thread.id for thread in zone.threads if thread.id is not None)
    return f"CPUs {ids}".strip(), "CPUs", _cpus_figure(zone.threads)


def memory_figure(memory: Memory) -> str:
    """The free amount and the total."""
    if not memory.total:
        return "none"
    if memory.free is None:
        return f"{human_bytes(memory.total)} shared"
    return _of(f"{human_bytes(memory.free)} free", human_bytes(memory.total))


def devices_figure(devices: Sequence[Device]) -> str:
    """The number of free devices, and of all devices."""
    return _of(f"{sum(device.is_free for device in devices)} free", str(len(devices)))


def joined(zone: Zone) -> str:
    """The zones that share a memory group with this zone."""
    neighbours = [neighbour for neighbour in zone.group if neighbour != zone.id]
    return f"memory joined with node{'' if len(neighbours) == 1 else 's'} {nodes(neighbours)}"


def shares(memory: Memory) -> list[str]:
    """The allocated and reserved shares of a bar in numbers."""
    return [
        f"{_share_name(share)} {human_bytes(share.size)}"
        for share in memory.shares
        if share.kind not in ("free", "shared")
    ]


def thread_title(picture: Picture, thread: Thread) -> str:
    """The tooltip of a CPU."""
    name = "a CPU" if thread.id is None else f"CPU {thread.id}"
    return f"{name}: {_allocated_to(picture, thread.owner) if thread.state == 'exclusive' else STATES[thread.state]}"


def share_title(picture: Picture, zone: Zone, memory: Memory, share: Share) -> str:
    """The tooltip of a part of a bar."""
    if share.kind == "held":
        names = [picture.owners[owner].name for owner in share.owners]
        holder = f"allocated to {' and '.join(names)}" if names else STATES["exclusive"]
    else:
        holder = STATES[share.kind]
    return f"{memory.type} of node {zone.id}: {human_bytes(share.size)} {holder}"


def device_title(picture: Picture, resource: str, device: Device) -> str:
    """The tooltip of a device."""
    facts = [_allocated_to(picture, device.owner)] if device.is_held else []
    if not device.is_healthy:
        facts.append("unhealthy")
    if len(device.zones) > 1:
        facts.append(f"near nodes {nodes(device.zones)}")
    name = resource if device.id is None else f"{resource} {device.id}"
    return f"{name}: {', '.join(facts) or 'free'}"


def holds(owner: Owner) -> list[str]:
    """The allocations of a pod, in phrases."""
    facts = []
    if owner.cpu_count:
        caches = f" in {plural(owner.caches, 'L3 cache')}" if owner.caches else ""
        facts.append(f"{plural(owner.cpu_count, 'CPU')} {cpuset.to_text(owner.cpus)}".strip() + caches)
    facts += [f"{human_bytes(block.size)} {block.type} on {nodes(block.zones)}" for block in owner.memory]
    for resource, count in owner.device_counts.items():
        ids = owner.devices.get(resource, ())
        facts.append(f"{resource} {ids[0]}" if len(ids) == 1 else f"{count} {resource}")
    return facts


def owner_title(owner: Owner) -> str:
    """The tooltip of a pod, with all ids."""
    devices = [f"{resource} {' '.join(ids)}" for resource, ids in owner.devices.items() if len(ids) > 1]
    return "; ".join([f"{owner.name}: {', '.join(holds(owner))}", *devices])


def pods_without_resources(picture: Picture) -> str:
    """The number of pods without exclusive resources; "" if there are none."""
    if not picture.other_pods:
        return "" if picture.owners else "No pod has exclusive resources."
    pods = plural(picture.other_pods, "more pod" if picture.owners else "pod")
    return f"{pods} without exclusive resources"


def nodes(ids: Sequence[int]) -> str:
    """A set of NUMA nodes: "0+1", for many NUMA nodes "0-33"."""
    return cpuset.to_text(ids) if len(ids) > _MOST_SUMMANDS else "+".join(map(str, ids))


def _cpus_figure(threads: Sequence[Thread]) -> str:
    free = _free_cpus(threads)
    return _of(free, str(len(threads))) if free else f"{len(threads)} shared"


def _free_cpus(threads: Sequence[Thread]) -> str:
    """The number of free CPUs, "" if no manager allocates CPUs."""
    if threads and all(thread.state == "shared" for thread in threads):
        return ""
    return f"{sum(thread.state == 'free' for thread in threads)} free"


def _of(free: str, total: str) -> str:
    return f"{free} of {total}"


def _share_name(share: Share) -> str:
    if share.kind == "held":
        return tags(share.owners) or "unknown"
    return share.kind


def _allocated_to(picture: Picture, owner: int | None) -> str:
    return STATES["exclusive"] if owner is None else f"allocated to {picture.owners[owner].name}"
