"""docs/threat-model.md: whatever was tried as an attack is tried again by a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
_PAGE = (REPOSITORY / "docs/threat-model.md").read_text()
_TABLE = _PAGE.partition("## Attacks that were tried")[2].partition("## What is left")[0]
_ROWS = [line.strip("| ").split(" | ") for line in _TABLE.splitlines() if line.startswith("| ") and "---" not in line][
    1:
]
_TEST = re.compile(r"`((?:tests/)?[\w/.-]+\.py)`")

# What was found once, by a word that its row has.
FINDINGS = (
    "text/plain",
    "DNS rebinding",
    "forwarded for people",
    "Made-up pods",
    "whose watch is late",
    "Volumes of other pods",
    "2,000 pods",
    "writes a NodeResourceTopology",
    "kube-scheduler's rights",
    "put into a path",
    "FIFO",
    "configz.caFile",
    "Deep JSON",
    "3,000 different bad requests",
    "1Ei",
    "head of 100 KB",
    "Port 99999",
    "package index",
    "everything goes wrong at once",
    "the image of a privileged pod",
    "labels, addresses, phases",
    "months later",
)


@pytest.mark.parametrize("finding", FINDINGS)
def test_each_finding_has_a_row(finding: str) -> None:
    assert [row for row in _ROWS if finding in row[0]], finding


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[0][:40])
def test_each_row_names_its_defence_and_existing_tests(row: list[str]) -> None:
    attack, defence, tests = row
    assert attack
    assert defence
    files = _TEST.findall(tests)
    assert files or tests.startswith("the same"), row
    names = {path.name for path in (REPOSITORY / "tests").rglob("test_*.py")}
    for file in files:
        # A path in full, or a second file of the folder named before.
        assert (REPOSITORY / file).is_file() if "/" in file else file in names


def test_every_test_that_the_page_names_is_there() -> None:
    missing = [path for path in re.findall(r"`(tests/[\w/.-]+)`", _PAGE) if not (REPOSITORY / path).exists()]
    assert not missing
