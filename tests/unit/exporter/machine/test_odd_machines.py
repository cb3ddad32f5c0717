"""The machines of tests/machines: oddities that no capture has, one folder each; a new folder needs no code.

`tree.json` maps a path to a file's content, to {"link": target} or to {"directory": true} (reading that fails with
EISDIR, as some attributes fail with EINVAL). `machine.json` is what `topowise-exporter machine` prints of it,
`problems.txt` what is told besides, paths from the root of the tree.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from topowise_exporter.machine import Machine, report

FOLDERS = sorted(path.parent for path in (Path(__file__).parents[3] / "machines").glob("*/tree.json"))


def _plant(tree: dict[str, str | dict[str, str]], root: Path) -> None:
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="ascii")
        elif "link" in content:
            path.symlink_to(content["link"])
        else:
            path.mkdir()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_odd_machine_is_read_as_recorded(tmp_path: Path, read: Callable[[Path], Machine], folder: Path) -> None:
    _plant(json.loads((folder / "tree.json").read_text(encoding="ascii")), tmp_path)
    machine = read(tmp_path)
    told = "".join(f"{problem.removeprefix(str(tmp_path))}\n" for problem in machine.problems)
    assert json.loads(json.dumps(report(machine))) == json.loads((folder / "machine.json").read_text())
    assert told == (folder / "problems.txt").read_text()


def test_every_oddity_has_its_machine() -> None:
    assert len(FOLDERS) >= 9
