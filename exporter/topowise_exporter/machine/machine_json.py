"""The machine as the JSON of `topowise-exporter machine`.

Other tools run that command, so the JSON structure is stable: lists ascend, object keys are decimal text, and a PCI
function without affinity has `numa_node` -1 as the kernel prints it. Problems go to stderr instead.
"""

from __future__ import annotations

from typing import TypeAlias

from topowise_exporter.machine.inventory import Cpu, Machine, NumaNode, PciFunction

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | None"


def as_json(machine: Machine) -> dict[str, Json]:
    """Returns plain dicts and lists for any JSON or YAML writer."""
    return {
        "nodes": [_node(node) for node in machine.nodes],
        "cpus": {
            "online": [*machine.online],
            "present": [*machine.present],
            "possible": [*machine.possible],
            "offline": [*machine.offline],
            "isolated": [*machine.isolated],
            "topology": {str(cpu.id): _cpu(cpu) for cpu in machine.cpus},
        },
        "pci": [_function(function) for function in machine.pci],
    }


def _node(node: NumaNode) -> dict[str, Json]:
    return {
        "id": node.id,
        "cpus": [*node.cpus],
        "memory_bytes": node.memory_bytes,
        "hugepages": {str(size): count for size, count in node.hugepages.items()},
        "distances": {str(node_id): distance for node_id, distance in node.distances.items()},
        "sockets": [*node.sockets],
    }


def _cpu(cpu: Cpu) -> dict[str, Json]:
    return {
        "node": cpu.node,
        "socket": cpu.socket,
        "die": cpu.die,
        "core": cpu.core,
        "core_id": cpu.core_id,
        "threads": [*cpu.threads],
        "l3": None if cpu.l3 is None else [*cpu.l3],
        "l3_id": cpu.l3_id,
        "kind": cpu.kind,
    }


def _function(function: PciFunction) -> dict[str, Json]:
    return {
        "address": function.address,
        "numa_node": -1 if function.numa_node is None else function.numa_node,
        "class": function.class_code,
        "vendor": function.vendor,
        "device": function.device,
        "driver": function.driver,
        "physfn": function.physfn,
        "path": [*function.path],
    }
