"""A kernel that writes anything into any file of /sys and /proc: the machine is read all the same, or refused."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import anything, tried
from sandbox import machines
from topowise import pci
from topowise.errors import SourceError
from topowise_exporter.machine import Machine, scan

MACHINE = machines.Machine(
    nodes=(
        machines.Node(0, machines.GIB, socket=0, cores=2, hugepages={machines.PAGE_2M: 8, machines.PAGE_1G: 0}),
        machines.Node(1, 2 * machines.GIB, socket=1, cores=2, hugepages={machines.PAGE_2M: 4}),
    ),
    distances=((10, 21), (22, 10)),
    pci=(machines.Pci("0000:00:1f.0", None, "0x060100", "0x8086", "0x2918"),),
)
SAMPLES = (b"0-3,8\n", b"00000000,000000ff\n", b"10 21\n", b"Node 0 MemTotal:   1048576 kB\n", b"-1\n", b"3\n")
_NAMES = st.sampled_from(
    ["0000:01:00.0", "0000:01:00.1", "0000:00:1c.0", "10000:00:04.0", "0000:00:1f.0", "eth0", "\x1b[2J\n"]
)
_FILE_NAMES = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
HOSTILE = {
    "a wide list": b"0-8191",
    "a list beyond all": b"0-999999999",
    "many ranges": b"0-8191," * 14_000,
    "a long mask": b"ffffffff," * 11_000,
    "a long number": b"9" * 100_000,
    "many distances": b"10 " * 33_000,
    "spaces": b"MemTotal:" + b" " * 100_000,
    "no lines": b"Node 0 " * 14_000,
    "nothing": b"",
    "zeros": b"\0" * 100_000,
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("machine")
    machines.write_tree(MACHINE, root)
    return root


def files(tree: Path) -> list[Path]:
    """A file of each kind: the same code reads the files of other CPUs and nodes."""
    paths = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in paths if not any(part in ("cpu2", "cpu3", "cpu5", "cpu6", "cpu7") for part in path.parts)]


def read(tree: Path) -> Machine | None:
    begun = time.process_time()
    try:
        scanned = scan(str(tree / "sys"), str(tree / "proc"))
    except SourceError as exc:
        assert "\n" not in str(exc)
        scanned = None
    assert time.process_time() - begun < 2.0
    if scanned is not None:
        assert all("\n" not in problem and len(problem) < 2000 for problem in scanned.problems)
        msgspec.json.encode(scanned)
        owned = [cpu for node in scanned.nodes for cpu in node.cpus]
        assert len(owned) == len(set(owned))
    return scanned


def with_content(path: Path, content: bytes, tree: Path) -> Machine | None:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        return read(tree)
    finally:
        path.write_bytes(before)


@tried
@given(st.data())
def test_any_file_may_say_anything(tree: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files(tree)), label="file")
    with_content(path, data.draw(anything((*SAMPLES, path.read_bytes()))), tree)


@tried
@given(
    st.dictionaries(
        st.sampled_from(["bus/pci/devices", "class/net", "class/drm"]).flatmap(
            lambda folder: st.one_of(_NAMES, _FILE_NAMES).map(lambda name: f"{folder}/{name}")
        ),
        st.lists(_NAMES | st.sampled_from(["..", "devices", "pci0000:00", "pci10000:00", ""]), max_size=40).map(
            "/".join
        ),
        max_size=8,
    )
)
def test_any_link_may_lead_anywhere(tree: Path, links: dict[str, str]) -> None:
    created = []
    for name, target in links.items():
        path = tree / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # What cannot be made in a directory cannot be met there.
        with contextlib.suppress(OSError, ValueError):
            path.symlink_to(target)
            created.append(path)
    try:
        machine = read(tree)
        assert machine is not None
        for function in machine.pci:
            if function.path:
                pci.check_path(function.path, function.address)
        assert all(pci.is_address(address) for _, address in machine.pci_names)
    finally:
        for path in created:
            path.unlink()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_is_expensive_to_read_is_not(tree: Path, name: str) -> None:
    for path in files(tree):
        if path.name in ("online", "cpulist", "cpumap", "distance", "meminfo", "numa_node", "nr_hugepages", "level"):
            with_content(path, HOSTILE[name], tree)


def test_what_is_damaged_is_named_and_the_rest_is_read(tree: Path, tmp_path: Path) -> None:
    whole = read(tree)
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy, symlinks=True)
    (copy / "sys/devices/system/node/node1/distance").write_bytes(b"\xff\x1b[2J\n0-")
    damaged = read(copy)
    assert whole is not None and damaged is not None
    assert [node.memory_bytes for node in damaged.nodes] == [node.memory_bytes for node in whole.nodes]
    assert any("node1/distance" in problem for problem in damaged.problems)
