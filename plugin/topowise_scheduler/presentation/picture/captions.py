"""What is written on the picture, and what its tooltips tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from topowise import cpuset
from topowise.quantity import human_bytes
from topowise_scheduler.presentation.picture.contents import Device, Memory, Owner, Picture, Share, Thread, Zone
from topowise_scheduler.presentation.text import plural

STATES: Final = {
    "free": "free",
    "shared": "shared by all pods",
    "reserved": "reserved for the system",
    "hugepages": "made into hugepages",
    "joint": "held by several pods",
    "exclusive": "held, by whom is unknown",
    "offline": "offline",
    "unhealthy": "unhealthy device",
}
"""Every way a box can be filled but by one pod, in the order of the key."""

_MOST_SUMMANDS: Final = 8

_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def tag(owner: int) -> str:
    """One letter for the first 52 pods, then two: 0 -> "A", 26 -> "a", 52 -> "AA"."""
    count = len(_LETTERS)
    return _LETTERS[owner] if owner < count else tag(owner // count - 1) + _LETTERS[owner % count]


def tags(owners: Sequence[int]) -> str:
    """The tags of some pods together."""
    return "+".join(map(tag, owners))


def about(picture: Picture) -> list[str]:
    """The facts under the name of the node."""
    threads = [thread for zone in picture.zones for thread in zone.threads]
    facts = [f"policy {picture.policy}", f"scope {picture.scope}"]
    bare = f", {len(picture.bare)} of them with nothing (not drawn)" if picture.bare else ""
    facts.append(f"{plural(len(picture.zones) + len(picture.bare), 'NUMA node')}{bare}")
    facts.append(f"{plural(len(threads), 'CPU')}, {_free_cpus(threads) or 'shared by all pods'}")
    facts.append("exact" if picture.precision == "exact" else "counts only, no CPU or device is known by its id")
    return [*facts, picture.age] if picture.age else facts


def label(picture: Picture) -> str:
    """The picture in one sentence, for those who do not see it."""
    pods = plural(len(picture.owners), "pod")
    return f"{picture.node}: {', '.join(about(picture))}; {pods} with CPUs, memory or devices of their own"


def cpus_caption(zone: Zone) -> tuple[str, str, str]:
    """What the zone has, with and without the ids, and how much of it is free."""
    ids = cpuset.spell(thread.id for thread in zone.threads if thread.id is not None)
    return f"CPUs {ids}".strip(), "CPUs", _cpus_figure(zone.threads)


def memory_figure(memory: Memory) -> str:
    """What is free of how much."""
    if not memory.total:
        return "none"
    if memory.free is None:
        return f"{human_bytes(memory.total)} shared"
    return _of(f"{human_bytes(memory.free)} free", human_bytes(memory.total))


def devices_figure(devices: Sequence[Device]) -> str:
    """How many are free of how many."""
    return _of(f"{sum(device.is_free for device in devices)} free", str(len(devices)))


def joined(zone: Zone) -> str:
    """That the zone's memory is in a group."""
    others = [other for other in zone.group if other != zone.id]
    return f"memory joined with node{'' if len(others) == 1 else 's'} {nodes(others)}"


def shares(memory: Memory) -> list[str]:
    """The taken shares of a bar in numbers."""
    return [
        f"{_share_name(share)} {human_bytes(share.size)}"
        for share in memory.shares
        if share.kind not in ("free", "shared")
    ]


def thread_title(picture: Picture, thread: Thread) -> str:
    """One CPU."""
    name = "a CPU" if thread.id is None else f"CPU {thread.id}"
    return f"{name}: {_held_by(picture, thread.owner) if thread.state == 'exclusive' else STATES[thread.state]}"


def share_title(picture: Picture, zone: Zone, memory: Memory, share: Share) -> str:
    """One part of a bar."""
    if share.kind == "held":
        names = [picture.owners[owner].name for owner in share.owners]
        holder = f"held by {' and '.join(names)}" if names else STATES["exclusive"]
    else:
        holder = STATES[share.kind]
    return f"{memory.type} of node {zone.id}: {human_bytes(share.size)} {holder}"


def device_title(picture: Picture, resource: str, device: Device) -> str:
    """One device."""
    facts = [_held_by(picture, device.owner)] if device.is_held else []
    if not device.is_healthy:
        facts.append("unhealthy")
    if len(device.zones) > 1:
        facts.append(f"near nodes {nodes(device.zones)}")
    name = resource if device.id is None else f"{resource} {device.id}"
    return f"{name}: {', '.join(facts) or 'free'}"


def holds(owner: Owner) -> list[str]:
    """What a pod has, fact by fact."""
    facts = []
    if owner.cpu_count:
        caches = f" in {plural(owner.caches, 'L3 cache')}" if owner.caches else ""
        facts.append(f"{plural(owner.cpu_count, 'CPU')} {cpuset.spell(owner.cpus)}".strip() + caches)
    facts += [f"{human_bytes(block.size)} {block.type} on {nodes(block.zones)}" for block in owner.memory]
    for resource, count in owner.device_counts.items():
        ids = owner.devices.get(resource, ())
        facts.append(f"{resource} {ids[0]}" if len(ids) == 1 else f"{count} {resource}")
    return facts


def owner_title(owner: Owner) -> str:
    """One pod, with all ids."""
    devices = [f"{resource} {' '.join(ids)}" for resource, ids in owner.devices.items() if len(ids) > 1]
    return "; ".join([f"{owner.name}: {', '.join(holds(owner))}", *devices])


def others(picture: Picture) -> str:
    """The pods that are not listed; "" if there are none."""
    if not picture.others:
        return "" if picture.owners else "No pod holds anything of its own."
    pods = plural(picture.others, "more pod" if picture.owners else "pod")
    return f"{pods} holding nothing of {'its' if picture.others == 1 else 'their'} own"


def nodes(ids: Sequence[int]) -> str:
    """Several NUMA nodes that are one place: "0+1", of many "0-33"."""
    return cpuset.spell(ids) if len(ids) > _MOST_SUMMANDS else "+".join(map(str, ids))


def _cpus_figure(threads: Sequence[Thread]) -> str:
    free = _free_cpus(threads)
    return _of(free, str(len(threads))) if free else f"{len(threads)} shared"


def _free_cpus(threads: Sequence[Thread]) -> str:
    """How many can be given away, "" if that is never done."""
    if threads and all(thread.state == "shared" for thread in threads):
        return ""
    return f"{sum(thread.state == 'free' for thread in threads)} free"


def _of(free: str, total: str) -> str:
    return f"{free} of {total}"


def _share_name(share: Share) -> str:
    if share.kind == "held":
        return tags(share.owners) or "unknown"
    return share.kind


def _held_by(picture: Picture, owner: int | None) -> str:
    return STATES["exclusive"] if owner is None else f"held by {picture.owners[owner].name}"
