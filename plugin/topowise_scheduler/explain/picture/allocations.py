"""Allocations on a `Kubelet`, by pod and by resource."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from topowise import digits
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.kubelet.memory_manager import Block


class Pod(NamedTuple):
    """The allocations of a pod; blocks of one type and mask are summed."""

    name: str
    cpus: CpuSet
    memory: tuple[Block, ...]
    devices: Mapping[str, tuple[str, ...]]


class Holdings(NamedTuple):
    """The pods by name, and the index of the pod that has a CPU or device, None for a pod without a name.

    `memory` has the blocks of all pods with these indexes; `uids` are all pods with an allocation.
    """

    pods: tuple[Pod, ...]
    uids: frozenset[str]
    cpus: Mapping[int, int | None]
    memory: tuple[tuple[int | None, Block], ...]
    devices: Mapping[str, Mapping[str, int | None]]


def of(kubelet: Kubelet, names: Mapping[str, str], *, is_exact: bool) -> Holdings:
    """All allocations. A pod without a name is shown by its uid if `is_exact`, and is unknown otherwise."""
    holders: dict[str, Pod] = {}
    for uid in {*_holders(kubelet)}:
        pod = Pod(names.get(uid, uid), _cpus(kubelet, uid), _memory(kubelet, uid), _devices(kubelet, uid))
        if pod.cpus or pod.memory or pod.devices:
            holders[uid] = pod
    ordered = sorted(holders, key=lambda uid: (_natural(holders[uid].name), uid))
    known = [uid for uid in ordered if is_exact or uid in names]
    index = {uid: number for number, uid in enumerate(known)}
    cpus: dict[int, int | None] = {}
    devices: dict[str, dict[str, int | None]] = {}
    blocks: list[tuple[int | None, Block]] = []
    for uid in ordered:
        pod, owner = holders[uid], index.get(uid)
        cpus |= dict.fromkeys(members(pod.cpus), owner)
        blocks += [(owner, block) for block in pod.memory]
        for resource, ids in pod.devices.items():
            devices.setdefault(resource, {}).update(dict.fromkeys(ids, owner))
    return Holdings(tuple([holders[uid] for uid in known]), frozenset(holders), cpus, tuple(blocks), devices)


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts "worker-2" before "worker-10"."""
    return [(digits.natural(part, len(part)) or 0, part) for part in re.split("([0-9]{1,18})", name)]


def _holders(kubelet: Kubelet) -> list[str]:
    holders = [*kubelet.devices.allocations]
    for manager in (kubelet.cpu, kubelet.memory):
        if manager is not None:
            holders += [*manager.allocations, *manager.bubbles]
    return holders


def _cpus(kubelet: Kubelet, uid: str) -> CpuSet:
    if kubelet.cpu is None:
        return 0
    cpus = kubelet.cpu.bubbles.get(uid, 0)
    for part in kubelet.cpu.allocations.get(uid, {}).values():
        cpus |= part
    return cpus


def _memory(kubelet: Kubelet, uid: str) -> tuple[Block, ...]:
    """The pod's own blocks if it has them (pod-level resources), else the blocks of its containers."""
    if kubelet.memory is None:
        return ()
    containers = kubelet.memory.allocations.get(uid, {}).values()
    blocks = kubelet.memory.bubbles.get(uid) or [block for blocks in containers for block in blocks]
    sums: dict[tuple[str, int], int] = {}
    for name, mask, size in blocks:
        sums[name, mask] = sums.get((name, mask), 0) + size
    return tuple([Block(name, mask, size) for (name, mask), size in sums.items() if size])


def _devices(kubelet: Kubelet, uid: str) -> dict[str, tuple[str, ...]]:
    sets: dict[str, int] = {}
    for holding in kubelet.devices.allocations.get(uid, {}).values():
        for resource, devices in holding.items():
            sets[resource] = sets.get(resource, 0) | devices
    tables = kubelet.devices.tables
    return {resource: tables[resource].names(devices) for resource, devices in sorted(sets.items()) if devices}
