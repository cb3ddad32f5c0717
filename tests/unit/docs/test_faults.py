"""docs/faults.md names every test of a fault, and no other."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
_PAGE = (REPOSITORY / "docs/faults.md").read_text()
_ROWS = [line.strip("|").split(" | ") for line in _PAGE.splitlines() if line.startswith("| ") and "`test_" in line]
_TEST = re.compile(r"^async def (test_\w+)\(", re.MULTILINE)


def written() -> list[str]:
    return [
        name
        for file in sorted((REPOSITORY / "tests/e2e").glob("test_fault_*.py"))
        for name in _TEST.findall(file.read_text())
    ]


def test_every_test_of_a_fault_is_named_once_and_is_there() -> None:
    named = [re.findall(r"`(test_\w+)`", row[-1]) for row in _ROWS]
    assert all(len(names) == 1 for names in named)
    assert sorted(name for names in named for name in names) == sorted(written())


def test_every_row_says_what_breaks_what_happens_and_what_tells_it() -> None:
    assert len(_ROWS) > 20
    assert all(len(row) == 4 and all(cell.strip() for cell in row) for row in _ROWS)
