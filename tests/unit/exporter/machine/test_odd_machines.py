"""The machines of tests/machines: oddities that no capture has, a folder per machine; a new folder needs no code.

`tree.json` holds its /sys and /proc, `machine.json` is what `topowise-exporter machine` prints of it,
`problems.txt` the expected problems, with paths from the root of the tree.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import trees
from topowise_exporter.machine import Machine, as_json

MACHINES = sorted(path.parent for path in trees.FOLDERS.glob("*/tree.json"))


@pytest.mark.parametrize("folder", MACHINES, ids=lambda folder: folder.name)
def test_an_odd_machine_is_read_as_recorded(tmp_path: Path, read: Callable[[Path], Machine], folder: Path) -> None:
    trees.plant(folder.name, tmp_path)
    machine = read(tmp_path)
    shown = "".join(f"{problem.removeprefix(str(tmp_path))}\n" for problem in machine.problems)
    assert json.loads(json.dumps(as_json(machine))) == json.loads((folder / "machine.json").read_text())
    assert shown == (folder / "problems.txt").read_text()


def test_every_oddity_has_its_machine() -> None:
    assert len(MACHINES) >= 9
