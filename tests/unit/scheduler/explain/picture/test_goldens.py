"""The exact output of both writers.

After an intended change: TOPOWISE_REGENERATE=1 .venv/bin/pytest and the path of this file.
Then look at what `git diff` shows of golden/, and at the SVGs in a browser.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from topowise_scheduler.explain.picture import Picture, svg, terminal

GOLDEN = Path(__file__).parent / "golden"

CASES: dict[str, Callable[[Picture], str]] = {
    "tiny.svg": svg,
    "tiny-80.txt": lambda picture: terminal(picture, width=80),
    "two-zones.svg": svg,
    "two-zones-60.txt": lambda picture: terminal(picture, width=60),
    "two-zones-80.txt": lambda picture: terminal(picture, width=80),
    "two-zones-100.colour.txt": lambda picture: terminal(picture, colour=True),
    "two-zones-100.ascii.txt": lambda picture: terminal(picture, ascii_only=True),
    "two-zones-counts.svg": svg,
    "two-zones-counts-80.txt": lambda picture: terminal(picture, width=80),
    "large.svg": svg,
    "large-80.txt": lambda picture: terminal(picture, width=80),
    "large-120.txt": lambda picture: terminal(picture, width=120),
    "large-counts-120.txt": lambda picture: terminal(picture, width=120),
    "group.svg": svg,
    "group-120.txt": lambda picture: terminal(picture, width=120),
    "summed-80.txt": lambda picture: terminal(picture, width=80),
    "odd.svg": svg,
    "odd-100.txt": terminal,
    "long-names.svg": svg,
    "long-names-24.txt": lambda picture: terminal(picture, width=24),
    "long-names-80.txt": lambda picture: terminal(picture, width=80),
    "every-state.svg": svg,
    "every-state-80.txt": lambda picture: terminal(picture, width=80),
    "every-state-80.ascii.txt": lambda picture: terminal(picture, width=80, ascii_only=True),
    "crowded-80.txt": lambda picture: terminal(picture, width=80),
}


@pytest.mark.parametrize("file", CASES)
def test_a_picture_equals_its_golden(file: str, picture_of: Callable[[str], Picture]) -> None:
    name = file.partition(".")[0].rstrip("0123456789").rstrip("-")
    drawn = CASES[file](picture_of(name))
    golden = GOLDEN / file
    if os.environ.get("TOPOWISE_REGENERATE"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(drawn, encoding="utf-8")
    assert drawn == golden.read_text(encoding="utf-8")


def test_no_golden_is_left_over() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == set(CASES)
