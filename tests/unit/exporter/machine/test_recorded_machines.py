"""The machines of tests/machines, a folder per machine; a new folder needs no code.

`tree.json` holds its /sys and /proc, `machine.json` is what `topowise-exporter machine` prints of it,
`problems.txt` the expected problems, with paths from the root of the tree. Folders `captured-…` are files of real
kernels, whose facts were recorded beside them at the capture; the other folders are oddities that no capture has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import trees
from topowise_exporter.machine import Machine, as_json
from topowise_exporter.machine.inventory import Access

MACHINES = sorted(path.parent for path in trees.FOLDERS.glob("*/tree.json"))


@pytest.mark.parametrize("folder", MACHINES, ids=lambda folder: folder.name)
def test_a_recorded_machine_is_read(tmp_path: Path, read: Callable[[Path], Machine], folder: Path) -> None:
    trees.plant(folder.name, tmp_path)
    machine = read(tmp_path)
    shown = "".join(f"{problem.removeprefix(str(tmp_path))}\n" for problem in machine.problems)
    assert json.loads(json.dumps(as_json(machine))) == json.loads((folder / "machine.json").read_text())
    assert shown == (folder / "problems.txt").read_text()
    assert read(tmp_path) == machine


def test_every_oddity_has_its_machine() -> None:
    assert len(MACHINES) >= 25


def test_what_is_not_printed_is_read_too(tmp_path: Path, read: Callable[[Path], Machine]) -> None:
    trees.plant("captured-hmat-tiers", tmp_path / "hmat")
    assert [node.access for node in read(tmp_path / "hmat").nodes] == [
        Access((0,), 10, 102400),
        Access((1,), 10, 102400),
        Access((1,), 200, 16384),
    ]
    trees.plant("captured-pci-sriov", tmp_path / "pci")
    functions = read(tmp_path / "pci").pci
    physical = {function.physfn for function in functions if function.physfn}
    assert physical and physical <= {function.address for function in functions if not function.physfn}
