"""The page on other projects names tests that exist, where it says that they are."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
PAGE = TESTS.parent / "docs/interoperability.md"

RECORDED = {"kai": "KAI-Scheduler", "scheduler-plugins": "scheduler-plugins", "volcano": "volcano"}


def named(pattern: str) -> set[str]:
    return set(re.findall(pattern, PAGE.read_text()))


def test_every_test_that_it_names_exists() -> None:
    there = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.M)
    }
    test_names = named(r"`(test_\w+)`")
    assert len(test_names) > 20
    assert test_names <= there


def test_every_file_of_tests_that_it_names_exists() -> None:
    there = {path.name for path in TESTS.rglob("test_*.py")}
    files = named(r"[`\[](test_\w+\.py)[`\]]")
    assert {"test_scheduler_plugins.py", "test_kai.py", "test_volcano.py", "test_producer_rte.py"} <= files <= there


def test_every_recording_is_of_the_commit_that_it_names() -> None:
    commits = named(r"`([0-9a-f]{7,9})`")
    for folder, project in RECORDED.items():
        for path in (TESTS / "interop/recorded" / folder).glob("*.json"):
            head = path.read_text()[:400]
            assert f'/{project}"' in head, path
            assert any(f'"commit": "{commit}' in head for commit in commits), path


def test_every_cell_of_who_with_whom_says_something() -> None:
    table = PAGE.read_text().rpartition("## Who with whom")[2]
    rows = [re.split(r"\s*\|\s*", line.strip(" |")) for line in table.splitlines() if line.startswith("| ")]
    assert [len(row) for row in rows] == [5] * 6
    for _, *cells in rows[1:]:
        assert all(re.search(r"`test_\w+\.py`", cell) or re.fullmatch(r"- \(.+\)", cell) for cell in cells)
