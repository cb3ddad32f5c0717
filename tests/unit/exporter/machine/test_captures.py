"""Sixteen captured machines, against facts recorded independently at the capture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topowise_exporter.machine import Machine, as_json
from topowise_exporter.machine.inventory import Access

NAMES = (
    "2n4c-smt2",
    "4n-uneven-hugepages",
    "72n",
    "8n",
    "cxl",
    "hmat-tiers",
    "interleaved-cpus",
    "maxcpus",
    "memless-cpuless",
    "nodist",
    "nohugetlb",
    "numa-fake4",
    "offline-cpus",
    "pci-sriov",
    "snc-dies",
    "uma",
)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def machine(captures: Path, read: Callable[[Path], Machine], name: str) -> Machine:
    return read(captures / name)


@pytest.fixture
def expected(captures: Path, name: str) -> Any:
    return json.loads((captures / "expected.json").read_text())[name]


def _owned_cpus(expected: Any, node: str) -> list[int]:
    """numa=fake lists all CPUs on every node, but links each CPU to a single node."""
    described = expected["nodes"][node]
    return sorted(set(described["cpus"]) & set(described["cpus_present"]))


def test_no_captured_machine_is_left_out(captures: Path) -> None:
    assert sorted(json.loads((captures / "expected.json").read_text())) == sorted(NAMES)


def test_nodes_match_the_kernels_nodes(machine: Machine, expected: Any) -> None:
    columns = expected["node"]["online"]
    assert as_json(machine)["nodes"] == [
        {
            "id": node,
            "cpus": _owned_cpus(expected, str(node)),
            "memory_bytes": expected["nodes"][str(node)]["MemTotal_kb"] * 1024,
            "hugepages": {
                str(int(size) * 1024): pages["nr"]
                for size, pages in sorted(
                    (expected["nodes"][str(node)].get("hugepages") or {}).items(), key=lambda item: int(item[0])
                )
            },
            "distances": {
                str(column): distance
                for column, distance in zip(columns, expected["nodes"][str(node)]["distance"], strict=True)
            },
            "sockets": sorted(
                {expected["topology"][str(cpu)]["physical_package_id"] for cpu in _owned_cpus(expected, str(node))}
            ),
        }
        for node in expected["node"]["dirs"]
    ]


def test_cpu_sets_match_the_kernels_sets(machine: Machine, expected: Any) -> None:
    cpus: Any = as_json(machine)["cpus"]
    for name in ("online", "present", "possible", "offline", "isolated"):
        assert cpus[name] == expected["cpu"][name], name


def test_every_cpu_has_its_place(machine: Machine, expected: Any) -> None:
    cpus: Any = as_json(machine)["cpus"]
    owners = {cpu: int(node) for node in expected["nodes"] for cpu in _owned_cpus(expected, node)}
    assert cpus["topology"].keys() == expected["topology"].keys()
    for cpu, place in cpus["topology"].items():
        described = expected["topology"][cpu]
        l3 = described.get("l3")
        # The kernel may give members of a group different ids (snc-dies); the scan uses the lowest member's id.
        first = expected["topology"][str(l3["cpus"][0])]["l3"] if l3 else None
        # What the kubelet makes of the caches is not in the captured facts.
        del place["uncore"]
        assert place == {
            "node": owners[int(cpu)],
            "socket": described["physical_package_id"],
            "die": described["die_id"],
            "core": described["core_cpus"][0],
            "core_id": described["core_id"],
            "threads": described["thread_siblings"],
            "l3": l3["cpus"] if l3 else None,
            "l3_id": first["id"] if first else None,
            "kind": "",
        }


def test_every_pci_function_is_read(machine: Machine, expected: Any, captures: Path, name: str) -> None:
    devices = captures / name / "sys/bus/pci/devices"
    assert as_json(machine)["pci"] == [
        {
            "address": address,
            "numa_node": described["numa_node"],
            "class": described["class"],
            "vendor": described["vendor"],
            "device": described["device"],
            "driver": described.get("driver"),
            "physfn": described.get("physfn"),
            "path": [*(devices / address).readlink().parts[4:-1]],
        }
        for address, described in sorted(expected["pci"].items())
    ]
    for function in machine.pci:
        assert function.virtfns == expected["pci"][function.address].get("sriov_numvfs", 0)


def test_a_sound_kernel_gives_no_problems(machine: Machine) -> None:
    assert machine.problems == ()


def test_the_hmat_is_read_per_node(captures: Path, read: Callable[[Path], Machine]) -> None:
    machine = read(captures / "hmat-tiers")
    assert [node.access for node in machine.nodes] == [
        Access((0,), 10, 102400),
        Access((1,), 10, 102400),
        Access((1,), 200, 16384),
    ]
