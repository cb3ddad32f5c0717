"""The DRA driver of the lab, and why a pod is not near its claimed devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab import dra, machine, truth
from lab.claimed import ALIGNED, ELSEWHERE, LOWEST, NOWHERE, OTHER, Device, Nodes, Seen
from lab.node import described
from lab.parts.claims import REFUSED_BIND
from sandbox.machines import write_tree
from topowise.claimed_devices import location
from topowise_scheduler.options.claims.numa_nodes import numa_nodes_of
from topowise_scheduler.serve.extender import binding

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


DEVICES = {numa: [Device(f"gpu-{numa}-{number}", numa) for number in range(2)] for numa in (0, 1)}
NODES = Nodes({"a": {0: 4, 1: 4}, "b": {0: 4, 1: 4}}, {"a": DEVICES[0] + DEVICES[1], "b": DEVICES[1] + DEVICES[0]})


def _seen(node: str, cpus: dict[int, int], numa: int, count: int = 1, first: int = 0) -> Seen:
    devices = frozenset(DEVICES[numa][first : first + count])
    return Seen(node, cpus, frozenset(cpus), devices, frozenset(cpus))


@pytest.mark.parametrize(
    ("pod", "running", "cause"),
    [
        (_seen("a", {0: 2}, 0), {}, ALIGNED),
        (_seen("b", {0: 2}, 1), {}, LOWEST),
        (_seen("a", {1: 2}, 0), {}, OTHER),
        (_seen("a", {1: 4}, 0, first=1), {"p": _seen("a", {0: 2}, 0)}, ELSEWHERE),
        (
            _seen("a", {1: 4}, 0, first=1),
            {"p": _seen("a", {0: 2}, 0), "q": Seen("b", {1: 2}, frozenset({1}), frozenset(), frozenset())},
            NOWHERE,
        ),
    ],
)
def test_a_pod_that_is_apart_has_a_cause(pod: Seen, running: dict[str, Seen], cause: str) -> None:
    assert NODES.cause(pod, running) == cause


def test_refused_binds_are_counted_by_the_words_of_the_service() -> None:
    assert REFUSED_BIND in Path(binding.__file__).read_text()


def test_a_second_machine_of_a_kind_has_a_name_of_its_own() -> None:
    first, second = machine.read("dual"), machine.read("dual-2")
    assert (first.name, first.copy, second.name, second.copy) == ("dual", 1, "dual-2", 2)
    assert second.nodes == first.nodes
