"""An emulated kubelet: the kubelet model for a machine that the exporter's own reader has read.

The model decides; this module emulates the files and podresources answers of the real kubelet meanwhile. An admission
is revealed step by step. Ended and refused pods stay in the managers (and in their files) until each manager checks
again, but no longer in List. After a restart the managers have all allocations, and List is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from sandbox.kubelet import managers
from sandbox.kubelet.holdings import Block, ContainerHoldings, NodeHoldings, PodHoldings
from sandbox.kubelet.managers import ManagerStates, restored
from sandbox.kubelet.plugin_sockets import plugins
from sandbox.kubelet.state_files import StateFiles
from topowise import pods, quantity
from topowise_exporter import machine as hardware
from topowise_scheduler.kubelet import (
    Admission,
    Core,
    Device,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    Machine,
    NumaNode,
)
from topowise_scheduler.kubelet.device_manager import Chooser
from topowise_scheduler.kubelet.machine import hugepages_resource
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.kubelet.memory_manager import Blocks

_UNKNOWN = NodeHoldings(frozenset(), (), frozenset(), {})


class EmulatedNode:
    """A node. Raises KubeletStartError if a real kubelet would not start with this configuration.

    `devices` None: the devices of the usual plug-ins for the machine's PCI functions. `chooser` None: among equal
    devices, the choice of the model.
    """

    def __init__(
        self,
        scanned: hardware.Machine,
        config: KubeletConfiguration,
        devices: Sequence[DevicePlugin] | None = None,
        *,
        chooser: Chooser | None = None,
    ) -> None:
        self._config = config
        self._chooser = chooser
        self._machine = _machine(scanned, plugins(scanned) if devices is None else tuple(devices))
        self._capacity_cpus = len(scanned.online)
        self.before_release: Callable[[Kubelet], None] = lambda model: None
        """Called before a pod gives back what it holds, or its init containers do, with the model of the kubelet."""
        self._begin()

    def _begin(self) -> None:
        self._kubelet = Kubelet(self._machine, self._config)
        self._kubelet.devices.chooser = self._chooser
        self._managers = ManagerStates.of(self._kubelet)
        self._restored: frozenset[str] = frozenset()
        # Pods that count as active, with the kinds of their containers by name.
        self._active: dict[str, tuple[pods.Metadata, Mapping[str, str]]] = {}
        self._registered = {plugin.resource for plugin in self._machine.devices}
        self.is_blind = False
        """Whether it does not know its pods and resources yet (see `restart`)."""

    @classmethod
    def from_files(cls, sysfs_root: Path, procfs_root: Path, config_file: Path) -> EmulatedNode:
        """Returns the machine of a tree as the exporter reads it, the configuration as it is written."""
        config = msgspec.yaml.decode(config_file.read_bytes(), type=KubeletConfiguration)
        return cls(hardware.scan(str(sysfs_root), str(procfs_root)), config)

    @property
    def model(self) -> Kubelet:
        """What decides; to be looked at."""
        return self._kubelet

    @property
    def cpu_policy(self) -> str:
        return self._config.cpuManagerPolicy

    @property
    def memory_policy(self) -> str:
        return self._config.memoryManagerPolicy

    # The life of a kubelet

    def restart(self, files: StateFiles) -> None:
        """The kubelet is a new process, which knows what the files tell and is blind to all else; no device plugin has
        registered. Raises SourceError for files with which a kubelet does not start."""
        self._begin()
        self._restored = restored(self._kubelet, files, self.cpu_policy, self.memory_policy)
        self._managers = ManagerStates.of(self._kubelet)
        self._registered = set()
        self.is_blind = True

    def open_eyes(self) -> None:
        """The kubelet has started its managers and knows what it may give out."""
        self.is_blind = False

    @property
    def unregistered(self) -> list[str]:
        """Resources whose plugins have not registered."""
        return [plugin.resource for plugin in self._machine.devices if plugin.resource not in self._registered]

    def plug(self, resource: str) -> None:
        """The plugin has registered: its devices can be given out."""
        self._registered.add(resource)
        self._report_devices(everything=False)

    def list_devices(self, resource: str, devices: Sequence[Device]) -> None:
        """A device plug-in has sent a list."""
        plugins = [plugin for plugin in self._machine.devices if plugin.resource != resource]
        self._machine = msgspec.structs.replace(
            self._machine, devices=(*plugins, DevicePlugin(resource, tuple(devices)))
        )
        self.plug(resource)

    def unplug(self, resource: str) -> None:
        """A device plug-in has closed its stream."""
        self._registered.discard(resource)
        self._report_devices(everything=False)

    def _report_devices(self, *, everything: bool) -> None:
        """What the model is to know. A container that has run through a restart keeps what it has without its plugin
        being asked (devicemanager/manager.go, devicesToAllocate), which for the model are healthy devices."""
        for plugin in self._machine.devices:
            is_there = everything or plugin.resource in self._registered
            devices = plugin.devices if is_there else [_unhealthy(device) for device in plugin.devices]
            self._kubelet.report_devices(plugin.resource, devices)

    @property
    def managers(self) -> ManagerStates:
        """What the managers have now."""
        return self._managers

    def has_restored(self, uid: str) -> bool:
        """Returns whether the pod was here before the kubelet's restart, and has not been looked at since."""
        return uid in self._restored and uid not in self._active

    # Pods

    def admit(self, pod: pods.Pod) -> Admission:
        """Returns the kubelet's decision; an admitted pod keeps its allocation. Nothing can interleave."""
        decision, steps = self.begin_admission(pod)
        for step in steps:
            self.reveal(step)
        self.end_admission(pod, decision)
        if not decision.admitted:
            self._managers = ManagerStates.of(self._kubelet)
        return decision

    def begin_admission(self, pod: pods.Pod) -> tuple[Admission, list[ManagerStates]]:
        """Returns the decision, and the states to `reveal` in order before `end_admission`.

        The pod is active at once. The allocations of ended pods are released, except of pods from before a restart: the
        kubelet knows which of them have ended only after all repeated admissions.
        """
        uid = pod.metadata.uid
        is_again = uid in self._restored
        if self.unregistered:
            self._report_devices(everything=is_again)
        needs = pods.needs(pod, pod_level_resources=self._kubelet.settings.pod_level_resources)
        seen = self._kubelet.view(uid, needs)
        before = ManagerStates.of(self._kubelet)
        decision, steps = managers.admit(self._kubelet, seen)
        if self.unregistered and is_again:
            self._report_devices(everything=False)
        self._active[uid] = pod.metadata, {container.name: container.kind for container in seen.containers}
        self._managers = before
        return decision, steps

    def reveal(self, step: ManagerStates) -> None:
        """The admission has come so far."""
        self._managers = step

    def end_admission(self, pod: pods.Pod, decision: Admission) -> None:
        """A pod that was refused is not active any more; what it got stays allocated."""
        if not decision.admitted:
            self._active.pop(pod.metadata.uid, None)

    def forget_restored(self) -> None:
        """Ends a restart: all remaining pods have been admitted again; the other pods are dead."""
        for uid in self._restored - self._active.keys():
            self._kubelet.remove(uid)
        self._restored = frozenset()

    def start(self, uid: str) -> bool:
        """Records that the pod's containers run and its init containers have ended; False if the pod is not here."""
        self.before_release(self._kubelet)
        started = self._kubelet.start(uid)
        memory, model = self._managers.memory, self._kubelet.memory
        if started and memory is not None and model is not None:
            done = set(memory.allocations.get(uid, ())) - set(model.allocations.get(uid, ()))
            self._managers = self._managers.without_memory_of(uid, done)
        return started

    def would_admit(self, pod: pods.Pod, after: Iterable[pods.Pod] = ()) -> Admission:
        """Returns the decision about a pod that arrives after other pods; the state is unchanged."""
        kubelet = self._kubelet.fork()
        for later in after:
            kubelet.admit(later)
        return kubelet.admit(pod)

    def as_told(self) -> Kubelet:
        """Returns a copy of the model as podresources reports it, with healthy devices only."""
        kubelet = self._kubelet.fork()
        for plugin in self._machine.devices:
            healthy = [device for device in plugin.devices if device.healthy]
            if healthy:
                kubelet.report_devices(plugin.resource, healthy)
            else:
                del kubelet.devices.tables[plugin.resource]
        return kubelet

    def would_admit_of(self, candidates: Iterable[pods.Pod]) -> int:
        """Returns how many pods would be admitted serially before the first refusal; the state is unchanged."""
        kubelet = self._kubelet.fork()
        return sum(1 for _ in takewhile(lambda pod: kubelet.admit(pod).admitted, candidates))

    def remove(self, uid: str) -> bool:
        """The pod has ended, and is not active any more; False if it was never admitted."""
        self.before_release(self._kubelet)
        self._active.pop(uid, None)
        return self._kubelet.remove(uid)

    def runs(self, uid: str) -> bool:
        """Returns whether the pod was admitted and has not gone."""
        return uid in self._active

    def reconcile(self) -> bool:
        """Releases the CPUs of ended pods; False if there were none."""
        before = self._managers
        self._managers = before.without_cpus_of(set(before.holders) - self._active.keys() - self._restored)
        return self._managers is not before

    # What it shows

    def capacity(self) -> dict[str, str]:
        """As in the Node's status."""
        amounts = {**self._amounts(), **self._machine.hugepages(), "memory": self._machine.memory()}
        amounts["cpu"] = 1000 * self._capacity_cpus
        return {name: quantity.to_text(name, amount) for name, amount in sorted(amounts.items())}

    def allocatable(self) -> dict[str, str]:
        """As in the Node's status."""
        return {name: quantity.to_text(name, amount) for name, amount in sorted(self._amounts().items())}

    def _amounts(self) -> dict[str, int]:
        return {**self._kubelet.allocatable(), **dict.fromkeys(self.unregistered, 0)}

    def holdings(self) -> NodeHoldings:
        """What podresources tells now: the active pods, with all of their containers."""
        if self.is_blind:
            return _UNKNOWN
        return self._shown(
            PodHoldings(uid, meta.namespace, meta.name, self._held(uid, kinds))
            for uid, (meta, kinds) in self._active.items()
        )

    def checkpoints(self) -> NodeHoldings:
        """What the files of the managers have: everybody that they know, the dead too."""
        managers = self._managers
        cpus = managers.cpu.bubbles if managers.cpu else {}
        memory = managers.memory.bubbles if managers.memory else {}
        return self._shown(
            PodHoldings(
                uid,
                "",
                "",
                self._held(uid, managers.kinds(uid)),
                frozenset(members(cpus.get(uid, 0))),
                self._blocks(memory.get(uid, ())),
            )
            for uid in managers.holders
        )

    def _shown(self, pods: Iterable[PodHoldings]) -> NodeHoldings:
        kubelet, cpu = self._kubelet, self._managers.cpu
        cpus = shared = frozenset[int]()
        if cpu is not None:
            cpus = frozenset(members(kubelet.topology.cpus & ~cpu.policy.reserved))
            shared = frozenset(members(cpu.default))
        every = [(plugin.resource, device) for plugin in self._machine.devices for device in plugin.devices]
        return NodeHoldings(
            allocatable_cpus=cpus,
            allocatable_memory=self._allocatable_memory(),
            shared_cpus=shared,
            device_nodes={(resource, device.id): device.numa for resource, device in every},
            pods=tuple(pods),
            memory_tables=self._memory_tables(),
            unhealthy=frozenset(
                (resource, device.id)
                for resource, device in every
                if not device.healthy or resource not in self._registered
            ),
        )

    def _held(self, uid: str, kinds: Mapping[str, str]) -> tuple[ContainerHoldings, ...]:
        cpus = self._managers.cpu.allocations.get(uid, {}) if self._managers.cpu else {}
        memory = self._managers.memory.allocations.get(uid, {}) if self._managers.memory else {}
        devices = self.devices_of(uid)
        return tuple(
            ContainerHoldings(
                name=name,
                kind=kind,
                cpus=frozenset(members(cpus.get(name, 0))),
                memory=self._blocks(memory.get(name, ())),
                devices=devices.get(name, {}),
            )
            for name, kind in kinds.items()
        )

    def devices_of(self, uid: str) -> dict[str, dict[str, tuple[str, ...]]]:
        """Returns the ids of a pod's devices by container and resource."""
        tables, allocations = self._managers.devices.tables, self._managers.devices.allocations
        return {
            container: {resource: tables[resource].names(ids) for resource, ids in devices.items()}
            for container, devices in allocations.get(uid, {}).items()
        }

    def _blocks(self, blocks: Blocks) -> tuple[Block, ...]:
        return tuple(Block(block.type, self._kubelet.ids(block.mask), block.size) for block in blocks)

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

    def _memory_tables(self) -> dict[str, Any]:
        memory = self._managers.memory
        if memory is None:
            return {}
        tables = memory.tables
        policy = tables.policy
        # cadvisor tells of no hugepages of a size that a NUMA node has no directory of.
        known = {
            numa.id: {"memory", *(hugepages_resource(size) for size in numa.hugepages)} for numa in self._machine.numa
        }
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
                    if name in known[node]
                },
                "cells": list(self._kubelet.ids(tables.cells[position])),
            }
            for position, node in enumerate(self._kubelet.node_ids)
        }


def _unhealthy(device: Device) -> Device:
    return msgspec.structs.replace(device, healthy=False)


def _machine(scanned: hardware.Machine, devices: tuple[DevicePlugin, ...]) -> Machine:
    """Returns the scanned machine as cadvisor tells it to the kubelet."""
    cores: dict[int, list[Core]] = {}
    for cpu in scanned.cpus:
        if cpu.id == cpu.core:
            cores.setdefault(cpu.node, []).append(Core(cpu.socket, cpu.threads, cpu.uncore))
    return Machine(
        numa=tuple(
            NumaNode(
                id=node.id,
                memory=node.memory_bytes,
                cores=tuple(cores.get(node.id, ())),
                hugepages={size // 1024: count for size, count in sorted(node.hugepages.items())},
                distances=tuple(node.distances.values()) or None,
            )
            for node in scanned.nodes
        ),
        devices=devices,
    )
