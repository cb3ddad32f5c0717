"""One emulated kubelet: the one-node model in charge of a machine that the exporter's own reader has read.

The model decides and keeps the books; this module turns them into what a kubelet shows of itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

import msgspec

from sandbox.kubelet.devices import plugins
from sandbox.kubelet.holdings import Block, ContainerHoldings, NodeHoldings, PodHoldings
from topowise import pods, quantity
from topowise_exporter import machine as hardware
from topowise_scheduler.kubelet import Admission, Core, Kubelet, KubeletConfiguration, Machine, NumaNode, Placement
from topowise_scheduler.kubelet.masks import members


class EmulatedNode:
    """Raises KubeletStartError if a real kubelet would not start like this."""

    def __init__(self, scanned: hardware.Machine, config: KubeletConfiguration) -> None:
        self._config = config
        self._machine = _machine(scanned)
        self._kubelet = Kubelet(self._machine, self._config)
        self._pods: dict[str, pods.Pod] = {}
        self._capacity_cpus = len(scanned.online)

    @classmethod
    def from_files(cls, sysfs_root: Path, procfs_root: Path, config_file: Path) -> EmulatedNode:
        """The machine of a tree as the exporter reads it, the configuration as it is written."""
        config = msgspec.yaml.decode(config_file.read_bytes(), type=KubeletConfiguration)
        return cls(hardware.scan(str(sysfs_root), str(procfs_root)), config)

    @property
    def cpu_policy(self) -> str:
        return self._config.cpuManagerPolicy

    @property
    def memory_policy(self) -> str:
        return self._config.memoryManagerPolicy

    def admit(self, pod: pods.Pod) -> Admission:
        """The kubelet's decision; an admitted pod holds what it was given."""
        decision = self._kubelet.admit(pod)
        if decision.admitted:
            self._pods[pod.metadata.uid] = pod
        return decision

    def start(self, uid: str) -> bool:
        """The pod's containers run, its init containers are done; False if the pod is not here."""
        return self._kubelet.start(uid)

    def would_admit(self, pod: pods.Pod) -> Admission:
        """What would become of a pod, which is left no trace of."""
        return self._kubelet.fork().admit(pod)

    def would_admit_of(self, some: Iterable[pods.Pod]) -> int:
        """How many pods would be admitted, one after the other, until the first that is not; no trace is left."""
        kubelet = self._kubelet.fork()
        return sum(1 for _ in takewhile(lambda pod: kubelet.admit(pod).admitted, some))

    def remove(self, uid: str) -> bool:
        """The pod is gone; False if it was never admitted."""
        self._pods.pop(uid, None)
        return self._kubelet.remove(uid)

    def runs(self, uid: str) -> bool:
        """Whether the pod was admitted and has not gone."""
        return uid in self._pods

    def capacity(self) -> dict[str, str]:
        """As in the Node's status."""
        amounts = {**self._kubelet.allocatable(), **self._machine.hugepages(), "memory": self._machine.memory()}
        amounts["cpu"] = 1000 * self._capacity_cpus
        return {name: quantity.spell(name, amount) for name, amount in sorted(amounts.items())}

    def allocatable(self) -> dict[str, str]:
        """As in the Node's status."""
        return {name: quantity.spell(name, amount) for name, amount in sorted(self._kubelet.allocatable().items())}

    def holdings(self) -> NodeHoldings:
        """What is given out now."""
        kubelet = self._kubelet
        cpus = shared = frozenset[int]()
        if kubelet.cpu is not None:
            cpus = frozenset(members(kubelet.topology.cpus & ~kubelet.cpu.policy.reserved))
            shared = frozenset(members(kubelet.cpu.default))
        return NodeHoldings(
            allocatable_cpus=cpus,
            allocatable_memory=self._allocatable_memory(),
            shared_cpus=shared,
            device_nodes={
                (plugin.resource, device.id): device.numa
                for plugin in self._machine.devices
                for device in plugin.devices
                if device.healthy
            },
            pods=tuple(self._pod(pod) for pod in self._pods.values()),
            memory_tables=self._memory_tables(),
        )

    def _pod(self, pod: pods.Pod) -> PodHoldings:
        meta = pod.metadata
        placed = self._kubelet.placements(meta.uid)
        containers = tuple(_container(name, placement) for name, placement in placed.items())
        return PodHoldings(meta.uid, meta.namespace, meta.name, containers)

    def _allocatable_memory(self) -> tuple[Block, ...]:
        memory = self._kubelet.memory
        if memory is None:
            return ()
        tables = memory.tables.policy.allocatable
        ids = self._kubelet.node_ids
        return tuple(
            Block(name, (ids[position],), size)
            for name, sizes in tables.items()
            for position, size in enumerate(sizes)
            if size > 0
        )

    def _memory_tables(self) -> dict[str, object]:
        memory = self._kubelet.memory
        if memory is None:
            return {}
        tables = memory.tables
        policy = tables.policy
        return {
            str(node): {
                "numberOfAssignments": tables.assignments[position],
                "memoryMap": {
                    name: {
                        "total": policy.total[name][position],
                        "systemReserved": policy.system_reserved[position].get(name, 0),
                        "allocatable": policy.allocatable[name][position],
                        "reserved": tables.reserved(name, position),
                        "free": tables.free[name][position],
                    }
                    for name in policy.total
                },
                "cells": list(self._kubelet.ids(tables.cells[position])),
            }
            for position, node in enumerate(self._kubelet.node_ids)
        }


def _container(name: str, placement: Placement) -> ContainerHoldings:
    return ContainerHoldings(
        name=name,
        kind=placement.kind,
        cpus=frozenset(members(placement.cpus or 0)),
        memory=tuple(Block(block.type, block.numa, block.size) for block in placement.memory),
        devices=dict(placement.devices),
    )


def _machine(scanned: hardware.Machine) -> Machine:
    """The scanned machine as cadvisor tells it to the kubelet."""
    cores: dict[int, list[Core]] = {}
    for cpu in scanned.cpus:
        if cpu.id == cpu.core:
            uncore = None if cpu.l3 is None else cpu.l3[0]
            cores.setdefault(cpu.node, []).append(Core(cpu.socket, cpu.threads, uncore))
    sizes = sorted({size for node in scanned.nodes for size in node.hugepages})
    return Machine(
        numa=tuple(
            NumaNode(
                id=node.id,
                memory=node.memory_bytes,
                cores=tuple(cores.get(node.id, ())),
                hugepages={size // 1024: node.hugepages.get(size, 0) for size in sizes},
                distances=tuple(node.distances.values()) or None,
            )
            for node in scanned.nodes
        ),
        devices=plugins(scanned),
    )
