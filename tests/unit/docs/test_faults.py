"""docs/faults.md names every test of a fault, and no other."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
_PAGE = (REPOSITORY / "docs/faults.md").read_text()
_ROWS = [line.strip("|").split(" | ") for line in _PAGE.splitlines() if line.startswith("| ") and "`test_" in line]
_ANY = re.compile(r"def (test_\w+)\(")
_TEST = re.compile(r"^async def (test_\w+)\(", re.MULTILINE)


def written() -> list[str]:
    return [
        name
        for file in sorted((REPOSITORY / "tests/e2e").glob("test_fault_*.py"))
        for name in _TEST.findall(file.read_text())
    ]


def test_every_test_of_a_fault_is_named_once_and_is_there() -> None:
    named = [name for row in _ROWS for name in re.findall(r"`(test_\w+)`", row[-1])]
    assert all("`test_" in row[-1] for row in _ROWS)
    assert len(named) == len(set(named))
    assert set(written()) <= set(named)
    anywhere = {name for file in (REPOSITORY / "tests").rglob("test_*.py") for name in _ANY.findall(file.read_text())}
    assert set(named) <= anywhere


def test_every_row_names_fault_effect_and_signal() -> None:
    assert len(_ROWS) > 20
    assert all(len(row) == 4 and all(cell.strip() for cell in row) for row in _ROWS)
