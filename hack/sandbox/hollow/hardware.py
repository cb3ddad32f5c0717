"""A machine of the sandbox as the exporter would read it from the tree that `machines.write_tree` writes.

The tree is some thousand files, which is more work than everything else a hollow node does in its life; a test holds
the two against each other.
"""

from __future__ import annotations

from collections import Counter

from sandbox import machines
from topowise_exporter.machine import Cpu, Machine, NumaNode, PciFunction


def scanned(machine: machines.Machine) -> Machine:
    """Returns the Machine directly, without writing and reading a tree."""
    cpus = machines.layout(machine)
    online = tuple(cpu.id for cpu in cpus if cpu.id not in machine.offline)
    running = frozenset(online)
    cores = Counter(node for node, _ in {(cpu.node, cpu.threads) for cpu in cpus if cpu.id in running})
    return Machine(
        nodes=tuple(
            _node(machine, rank, [cpu for cpu in cpus if cpu.node == node.id], running)
            for rank, node in enumerate(machine.nodes)
        ),
        cpus=tuple(_cpu(cpu, running, cores[cpu.node]) for cpu in cpus if cpu.id in running),
        pci=tuple(
            sorted((_function(machine, function) for function in machine.pci), key=lambda function: function.address)
        ),
        online=online,
        present=tuple(cpu.id for cpu in cpus),
        possible=tuple(cpu.id for cpu in cpus),
        offline=tuple(sorted(machine.offline)),
        isolated=(),
        memory_bytes=sum(node.memory_bytes for node in machine.nodes),
    )


def _node(machine: machines.Machine, rank: int, cpus: list[machines.Cpu], running: frozenset[int]) -> NumaNode:
    node = machine.nodes[rank]
    return NumaNode(
        id=node.id,
        cpus=tuple(cpu.id for cpu in cpus if cpu.id in running),
        memory_bytes=node.memory_bytes,
        hugepages=dict(sorted(node.hugepages.items())),
        distances={neighbour.id: machine.distances[rank][at] for at, neighbour in enumerate(machine.nodes)},
        sockets=tuple(sorted({cpu.socket for cpu in cpus if cpu.id in running})),
    )


def _cpu(cpu: machines.Cpu, running: frozenset[int], cores_of_node: int) -> Cpu:
    threads = tuple(sorted(running.intersection(cpu.threads)))
    l3 = None if cpu.l3 is None else tuple(sorted(running.intersection(cpu.l3)))
    return Cpu(
        id=cpu.id,
        node=cpu.node,
        socket=cpu.socket,
        die=0,
        core=threads[0],
        core_id=cpu.core_id,
        threads=threads,
        l3=l3,
        l3_id=None if l3 is None else l3[0],
        # A cache of a whole NUMA node is none of its cores'.
        uncore=None if l3 is None or len(l3) == cores_of_node * len(threads) else l3[0],
        kind="",
    )


def _function(machine: machines.Machine, function: machines.Pci) -> PciFunction:
    return PciFunction(
        address=function.address,
        numa_node=function.node,
        class_code=function.class_code,
        vendor=function.vendor,
        device=function.device,
        driver=function.driver,
        physfn=function.physfn,
        path=machines.above(machine, function),
    )
