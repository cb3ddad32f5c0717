"""The machine as the JSON of `topowise-exporter machine`.

Other tools run that command, so the JSON structure is stable: lists ascend, object keys are decimal text, and a PCI
function without affinity has `numa_node` -1 as the kernel prints it. Problems go to stderr instead.
"""

from __future__ import annotations

from typing import Any

import msgspec

from topowise_exporter.machine.inventory import Machine


def as_json(machine: Machine) -> dict[str, Any]:
    """Returns plain dicts and lists for any JSON or YAML writer."""
    whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(machine))
    for node in whole["nodes"]:
        del node["access"]
    for function in whole["pci"]:
        function["numa_node"] = -1 if function["numa_node"] is None else function["numa_node"]
        del function["virtfns"]
    sets = {name: whole[name] for name in ("online", "present", "possible", "offline", "isolated")}
    return {
        "nodes": whole["nodes"],
        "cpus": {**sets, "topology": {str(cpu.pop("id")): cpu for cpu in whole["cpus"]}},
        "pci": whole["pci"],
        "memory_bytes": machine.memory_bytes,
    }
