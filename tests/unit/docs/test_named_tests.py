"""Pages that prove what they say by tests: every test that they name is there, and every row names one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
DOCS = TESTS.parent / "docs"
PAGES = [TESTS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
RECORDED = {"kai": "KAI-Scheduler", "scheduler-plugins": "scheduler-plugins", "volcano": "volcano"}


@cache
def there() -> frozenset[str]:
    """The names of all files of tests and of their functions."""
    files = list(TESTS.rglob("test_*.py"))
    functions = (re.findall(r"def (test_\w+)\(", path.read_text()) for path in files)
    return frozenset({name for path in files for name in (path.name, path.stem)}.union(*functions))


def rows(page: str, heading: str = "") -> list[list[str]]:
    """The cells of the rows of the tables below a heading, without the heads of the tables."""
    lines = (DOCS / page).read_text().partition(heading)[2].partition("\n## ")[0].splitlines()
    tables = [line for line in lines if line.startswith("| ") and "---" not in line]
    return [re.split(r"\s*\|\s*", line.strip(" |")) for line in tables][1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(r"[`\[](test_\w+(?:\.py)?)[`\]]", text)) <= there()
    assert not [path for path in re.findall(r"`(tests/[\w/.-]+)`", text) if not (TESTS.parent / path).exists()]


def test_each_attack_names_its_defence_and_a_test() -> None:
    attacks = rows("threat-model.md", "## Attacks that were tried")
    assert len(attacks) > 20
    for attack, defence, tests in attacks:
        assert attack and defence
        files = re.findall(r"`((?:tests/)?[\w/.-]+\.py)`", tests)
        assert files or tests.startswith("the same"), tests
        # A path in full, or a second file of the folder named before.
        assert all((TESTS.parent / file).is_file() if "/" in file else file in there() for file in files)


def test_every_test_of_a_fault_is_named_once_beside_fault_effect_and_signal() -> None:
    faults = [
        line.strip("|").split(" | ") for line in (DOCS / "faults.md").read_text().splitlines() if "`test_" in line
    ]
    assert len(faults) > 20
    assert all(len(row) == 4 and all(cell.strip() for cell in row) and "`test_" in row[-1] for row in faults)
    named = [name for row in faults for name in re.findall(r"`(test_\w+)`", row[-1])]
    assert len(named) == len(set(named))
    texts = (file.read_text() for file in (TESTS / "e2e").glob("test_fault_*.py"))
    assert {name for text in texts for name in re.findall(r"^async def (test_\w+)\(", text, re.M)} <= set(named)


def test_every_recording_is_of_the_commit_that_the_page_names() -> None:
    commits = set(re.findall(r"`([0-9a-f]{7,9})`", (DOCS / "interoperability.md").read_text()))
    for folder, project in RECORDED.items():
        for path in (TESTS / "interop/recorded" / folder).glob("*.json"):
            head = path.read_text()[:400]
            assert f'/{project}"' in head, path
            assert any(f'"commit": "{commit}' in head for commit in commits), path


def test_every_cell_of_who_with_whom_says_something() -> None:
    table = rows("interoperability.md", "## Who with whom")
    assert [len(row) for row in table] == [5] * 5
    for _, *cells in table:
        assert all(re.search(r"`test_\w+\.py`", cell) or re.fullmatch(r"- \(.+\)", cell) for cell in cells)
