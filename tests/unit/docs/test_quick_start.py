"""The quick start marks the commands that no test types, and has the command that the demo prints."""

from __future__ import annotations

import re

from demo.__main__ import REACH
from kept_demo import NOT_HERE, REPOSITORY, after_the_tour, commands_of, tour

PAGE = (REPOSITORY / "docs/quick-start.md").read_text()
MARKS = ("not run", "not into kind")


def sections(page: str) -> list[tuple[str, str]]:
    """Text by heading, up to the next heading."""
    parts = re.split(r"^(#+ .*)$", page, flags=re.MULTILINE)
    return list(zip(["", *parts[1::2]], parts[::2], strict=True))


def test_what_is_not_typed_is_marked_on_the_page() -> None:
    is_marked = {
        command: any(mark in heading for mark in MARKS) or "*(not run)*" in text
        for heading, text in sections(after_the_tour(PAGE))
        for command in commands_of(text)
        if NOT_HERE.match(command) or command.startswith("make load")
    }
    assert is_marked
    assert all(is_marked.values()), is_marked


def test_the_way_into_the_demo_is_on_the_page() -> None:
    assert REACH in tour(PAGE)
