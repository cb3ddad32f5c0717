"""The machine, and its kubelet by what it shows: a socket and state files."""

from __future__ import annotations

import time
from pathlib import Path

from sandbox import machines
from sandbox.kubelet import podresources
from sandbox.kubelet.holdings import Block, ContainerHoldings, NodeHoldings, PodHoldings
from sandbox.kubelet.state_files import StateFiles

GIB = 1 << 30

MACHINE = machines.Machine(
    nodes=tuple(machines.Node(number, 64 * GIB, socket=number // 4, cores=64) for number in range(8)),
    distances=tuple(tuple(10 if a == b else 12 if a // 4 == b // 4 else 21 for b in range(8)) for a in range(8)),
    pci=tuple(
        function
        for number in range(8)
        for function in (
            *machines.gpu(f"0000:{0x20 + number:02x}:00.0", number, f"0000:{0x10 + number:02x}:00.0"),
            *machines.nic(f"0000:{0x40 + number:02x}:00.0", number, f"0000:{0x30 + number:02x}:00.0", 7),
        )
    ),
)
CPUS = {node: [cpu.id for cpu in machines.layout(MACHINE) if cpu.node == node] for node in range(8)}


class Kubelet:
    """Socket and state files of a node with many pods."""

    def __init__(self, root: Path, pods: int) -> None:
        self._files = StateFiles(root)
        self._root = root
        self._free = {node: list(cpus[2:]) for node, cpus in CPUS.items()}
        self._pods: dict[str, PodHoldings] = {}
        self._with_directory: set[str] = set()
        for number in range(pods):
            self._put(f"pod-{number}", number % 8, exclusive=number < 80)
        self._devices: dict[tuple[str, str], tuple[int, ...] | None] = {}
        for node in range(8):
            self._devices["nvidia.com/gpu", f"gpu-{node}"] = (node,)
            for vf in range(8):
                self._devices["intel.com/e810_vf", f"vf-{node}-{vf}"] = (node,)
        self._now = self._observe()
        self._write(admitted=True)

    def holdings(self) -> NodeHoldings:
        return self._now

    def _observe(self) -> NodeHoldings:
        return NodeHoldings(
            allocatable_cpus=frozenset(cpu for cpus in CPUS.values() for cpu in cpus[2:]),
            allocatable_memory=tuple(Block("memory", (node,), 60 * GIB) for node in range(8)),
            shared_cpus=frozenset(cpu for cpus in self._free.values() for cpu in cpus),
            device_nodes=self._devices,
            pods=tuple(self._pods.values()),
        )

    def admit(self, name: str, node: int) -> float:
        """Admits a pod: writes the state files, then the pod's directory. Returns the time of the start."""
        self._put(name, node, exclusive=True)
        self._change()
        begun = time.perf_counter()
        self._write(admitted=True)
        return begun

    def release(self, name: str) -> None:
        """Ends a pod without a write, as the kubelet's memory and device managers do."""
        for container in self._pods.pop(name).containers:
            for cpu in container.cpus:
                self._free[next(node for node, cpus in CPUS.items() if cpu in cpus)].append(cpu)
        self._change()

    def _change(self) -> None:
        # The kubelet's own time does not count: its answers are ready before the exporter's call.
        self._now = self._observe()
        podresources.prepare(self._now)

    def _put(self, name: str, node: int, *, exclusive: bool) -> None:
        main = ContainerHoldings("main", "app")
        if exclusive:
            cpus = frozenset(self._free[node].pop() for _ in range(2))
            main = ContainerHoldings("main", "app", cpus, (Block("memory", (node,), GIB),))
        self._pods[name] = PodHoldings(name, "default", name, (main, ContainerHoldings("side", "app")))

    def _write(self, *, admitted: bool) -> None:
        self._files.write(self.holdings(), cpu_policy="static", memory_policy="None", admitted=admitted)
        # What tells that an admission is over; directories of pods that have ended linger.
        for pod in self._pods.keys() - self._with_directory:
            (self._root / "pods" / pod).mkdir(parents=True, exist_ok=True)
        self._with_directory |= self._pods.keys()
