"""The page on interoperability names existing tests."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (REPOSITORY / "docs/interoperability.md").read_text()))
    sources = [path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py")]
    there = {name for text in sources for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", text, re.M)}
    assert len(named) > 10
    assert named <= there
