"""The DRA driver of the lab, and when a pod is near its claimed devices."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab import dra, machine, truth
from lab.node import described
from lab.parts.claims import Seen
from sandbox.machines import write_tree
from topowise.claimed_devices import location
from topowise_scheduler.options.claims.devices import numa_nodes_of

DRIVER = "gpu.example.com"


def _functions(folder: Path) -> list[dra.Function]:
    sysfs, _ = write_tree(described(machine.read("dual")), folder)
    return dra.functions("0302", sysfs / "bus/pci/devices")


@pytest.mark.parametrize("attributes", [("numaNode", "pcieRoot"), ("pciBusID",), ("pcieRoot",)])
def test_every_rule_locates_the_devices_of_a_machine(tmp_path: Path, attributes: tuple[str, ...]) -> None:
    listed = _functions(tmp_path)
    published = dra.slice_of(DRIVER, "dual", listed, attributes)["spec"]["devices"]
    roots = ",".join(sorted({f"{function.root}={function.numa}" for function in listed}))
    numa_nodes = numa_nodes_of({0, 1}, roots)
    located = {device["name"]: numa_nodes.of(_location(device["attributes"])) for device in published}
    assert located == {function.device: function.numa for function in listed}
    assert sorted(located.values()) == [0] * 4 + [1] * 4


def _location(attributes: dict[str, dict[str, Any]]) -> Any:
    class Attribute:
        def __init__(self, value: dict[str, Any]) -> None:
            self.integer, self.string = value.get("int"), value.get("string")
            self.ints = self.strings = None

    return location({name: Attribute(value) for name, value in attributes.items()}, DRIVER)


def test_a_node_names_the_numa_nodes_of_devices() -> None:
    sys = {"bus/pci/devices/0000:18:00.0/numa_node": "1\n", "bus/pci/devices/0000:18:00.0/class": "0x030200\n"}
    assert truth.functions(sys) == {"gpu-0000-18-00-0": 1}


@pytest.mark.parametrize(
    ("cpus", "memory", "numa", "expected"),
    [({0: 2}, {0}, 0, True), ({0: 2}, {0}, 1, False), ({0: 2, 1: 2}, {0}, 0, False), ({0: 2}, {1}, 0, False)],
)
def test_a_pod_is_aligned_if_its_devices_are_near_its_cpus_and_memory(
    cpus: dict[int, int], memory: set[int], numa: int, expected: bool
) -> None:
    seen = Seen("a", Counter(cpus), frozenset(memory), {"gpu-0": numa}, frozenset(cpus))
    assert seen.is_aligned is expected


def test_a_second_machine_of_a_kind_has_a_name_of_its_own() -> None:
    first, second = machine.read("dual"), machine.read("dual-2")
    assert (first.name, first.copy, second.name, second.copy) == ("dual", 1, "dual-2", 2)
    assert second.nodes == first.nodes
