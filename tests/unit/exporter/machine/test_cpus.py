"""Which CPUs there are, and how they share cores, packages and caches."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from topowise_exporter.machine import Machine

Read = Callable[[Path], Machine]


@pytest.fixture
def cpus(small: Path) -> Path:
    return small / "sys/devices/system/cpu"


def _threads(machine: Machine) -> list[tuple[int, ...]]:
    return sorted({cpu.threads for cpu in machine.cpus})


def test_a_core_is_named_by_its_lowest_thread(small: Path, read: Read) -> None:
    assert {cpu.id: cpu.core for cpu in read(small).cpus} == {0: 0, 1: 1, 2: 2, 3: 3, 4: 0, 5: 1, 6: 2, 7: 3}


def test_core_ids_repeat_in_every_package(small: Path, read: Read) -> None:
    machine = read(small)
    assert [(cpu.socket, cpu.core_id) for cpu in machine.cpus[:4]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({cpu.core for cpu in machine.cpus}) == 4


def test_a_core_is_what_cadvisor_takes_as_a_core(small: Path, cpus: Path, read: Read) -> None:
    """CPUs 0,1,4,5 are on NUMA node 0. core_id restarts in each cluster of an ARM board: then they are one core."""
    for cpu in range(8):
        (cpus / f"cpu{cpu}/topology/core_id").write_text("0\n")
        (cpus / f"cpu{cpu}/topology/core_cpus_list").write_text(f"{cpu}\n")
        (cpus / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{cpu}\n")
    machine = read(small)
    assert _threads(machine) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert machine.problems == ()


def test_a_core_does_not_extend_over_packages_or_numa_nodes(small: Path, cpus: Path, read: Read) -> None:
    for cpu in range(8):
        (cpus / f"cpu{cpu}/topology/core_id").write_text("0\n")
        (cpus / f"cpu{cpu}/topology/physical_package_id").write_text(f"{cpu // 4}\n")
    assert _threads(read(small)) == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_without_topology_every_cpu_is_a_core_of_its_own_in_an_unknown_package(
    small: Path, cpus: Path, read: Read
) -> None:
    for folder in cpus.glob("cpu*/topology"):
        shutil.rmtree(folder)
    machine = read(small)
    assert _threads(machine) == [(cpu,) for cpu in range(8)]
    assert {(cpu.socket, cpu.die, cpu.core_id) for cpu in machine.cpus} == {(-1, -1, -1)}
    assert machine.problems == (
        f"{cpus}/cpu{{0-7}}/topology: has no physical_package_id or no core_id; each CPU counts as a core",
    )


@pytest.mark.parametrize("gone", ["core_id", "physical_package_id"])
def test_a_cpu_that_the_kubelet_does_not_know_is_on_no_node(small: Path, cpus: Path, read: Read, gone: str) -> None:
    (cpus / f"cpu4/topology/{gone}").unlink()
    machine = read(small)
    assert machine.nodes[0].cpus == (0, 1, 5)
    assert next(cpu for cpu in machine.cpus if cpu.id == 4).node == -1
    assert machine.problems == (
        f"{cpus}/cpu{{4}}/topology: has no physical_package_id or no core_id; the kubelet leaves these CPUs out",
    )


def test_an_offline_thread_is_no_sibling_whatever_the_list_says(small: Path, cpus: Path, read: Read) -> None:
    (cpus / "online").write_text("0-3,5-7\n")
    machine = read(small)
    assert _threads(machine) == [(0,), (1, 5), (2, 6), (3, 7)]
    assert all(4 not in cpu.l3 for cpu in machine.cpus if cpu.l3)


def test_l3_groups_come_from_the_lists_and_not_from_the_ids(small: Path, cpus: Path, read: Read) -> None:
    for file in cpus.glob("cpu*/cache/index3/id"):
        file.write_text("0\n")
    machine = read(small)
    assert {cpu.l3 for cpu in machine.cpus} == {(0, 1, 4, 5), (2, 3, 6, 7)}
    assert {cpu.l3_id for cpu in machine.cpus} == {0}


def test_a_cache_without_id_is_a_group_all_the_same(small: Path, cpus: Path, read: Read) -> None:
    for file in cpus.glob("cpu*/cache/index3/id"):
        file.unlink()
    machine = read(small)
    assert {cpu.l3 for cpu in machine.cpus} == {(0, 1, 4, 5), (2, 3, 6, 7)}
    assert {cpu.l3_id for cpu in machine.cpus} == {None}
    assert machine.problems == ()


def test_the_l3_is_found_by_its_level(small: Path, cpus: Path, read: Read) -> None:
    for folder in cpus.glob("cpu*/cache"):
        shutil.rmtree(folder / "index2")
        (folder / "index3").rename(folder / "index2")
    assert {cpu.l3 for cpu in read(small).cpus} == {(0, 1, 4, 5), (2, 3, 6, 7)}


@pytest.mark.parametrize("gone", ["cache", "cache/index3"])
def test_a_machine_may_have_no_l3(small: Path, cpus: Path, read: Read, gone: str) -> None:
    for folder in cpus.glob(f"cpu*/{gone}"):
        shutil.rmtree(folder)
    machine = read(small)
    assert {(cpu.l3, cpu.l3_id) for cpu in machine.cpus} == {(None, None)}
    assert machine.problems == ()


def _uncores(machine: Machine) -> list[int | None]:
    return [cpu.uncore for cpu in machine.cpus]


def _split(cpus: Path) -> None:
    """Gives each core an L3 cache of its own."""
    for cpu in range(8):
        cache = cpus / f"cpu{cpu}/cache/index3"
        (cache / "shared_cpu_map").write_text(f"{0x11 << cpu % 4:x}\n")
        (cache / "id").write_text(f"{cpu % 4}\n")


def test_a_cache_of_a_whole_node_is_no_cache_of_its_cores(small: Path, cpus: Path, read: Read) -> None:
    assert _uncores(read(small)) == [None] * 8
    _split(cpus)
    assert _uncores(read(small)) == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(("index", "gone"), [(0, "id"), (1, "size"), (2, "type"), (3, "id"), (3, "shared_cpu_map")])
def test_a_cache_with_a_missing_file_ends_the_caches_of_the_node(
    small: Path, cpus: Path, read: Read, index: int, gone: str
) -> None:
    """cAdvisor returns at the first file that it cannot read; cores before keep their caches."""
    _split(cpus)
    (cpus / f"cpu1/cache/index{index}/{gone}").unlink()
    assert _uncores(read(small)) == [0, None, 2, 3, 0, None, 2, 3]


def test_the_core_types_of_a_hybrid_machine_are_read(small: Path, read: Read) -> None:
    for kind, members in (("core", "0-1,4-5"), ("atom", "2-3,6-7")):
        unit = small / f"sys/devices/cpu_{kind}"
        unit.mkdir()
        (unit / "cpus").write_text(members + "\n")
    assert [cpu.kind for cpu in read(small).cpus] == ["core", "core", "atom", "atom"] * 2


def test_sets_an_old_kernel_lacks_are_made_up(small: Path, cpus: Path, read: Read) -> None:
    for name in ("online", "present", "possible", "offline", "isolated"):
        (cpus / name).unlink()
    (cpus / "cpu7/online").write_text("0\n")
    machine = read(small)
    assert machine.online == (0, 1, 2, 3, 4, 5, 6)
    assert machine.present == machine.possible == (0, 1, 2, 3, 4, 5, 6, 7)
    assert machine.offline == (7,)
    assert machine.isolated == ()
    assert machine.problems == (f"{cpus}/online: no usable set of CPUs; the CPUs not switched off are used",)


def test_trailing_nuls_and_unset_lists_are_the_empty_set(small: Path, cpus: Path, read: Read) -> None:
    (cpus / "online").write_text("0-7\n\0")
    (cpus / "isolated").write_text("\n\0")
    machine = read(small)
    assert machine.online == tuple(range(8))
    assert machine.isolated == ()
    assert machine.problems == ()


def test_isolated_cpus_are_read(small: Path, cpus: Path, read: Read) -> None:
    (cpus / "isolated").write_text("2-3,6-7\n")
    assert read(small).isolated == (2, 3, 6, 7)
