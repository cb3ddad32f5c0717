"""Widths of texts, and truncation of texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise_scheduler.explain.picture.measures import Face

CELLS = Face("cells", 1, 1)
MONO = Face("mono", 10, 12)
SANS = Face("sans", 12, 18, is_bold=True)


@pytest.mark.parametrize(("text", "cells"), [("", 0), ("abc", 3), ("größe", 5), ("機器", 4), ("e\u0301", 1), ("━·", 2)])
def test_cells(text: str, cells: int) -> None:
    assert CELLS.width(text) == cells


# Advance widths of DejaVu Sans and DejaVu Sans Bold at 2048 units an em, the widest fonts of the families.
@pytest.mark.parametrize(
    ("text", "regular", "bold"),
    [
        ("a", 1255, 1382), ("e", 1260, 1389), ("i", 569, 702), ("m", 1995, 2134), ("w", 1675, 1892),
        ("r", 842, 1010), ("t", 803, 979), ("f", 721, 891), ("G", 1587, 1681), ("H", 1540, 1714),
        ("M", 1767, 2038), ("N", 1532, 1714), ("O", 1612, 1741), ("W", 2025, 2259), ("0", 1303, 1425),
        ("-", 739, 850), (".", 651, 778), ("/", 690, 748), (" ", 651, 713), ("+", 1716, 1716),
    ],
)  # fmt: skip
def test_the_estimate_is_at_least_the_widest_font(text: str, regular: int, bold: int) -> None:
    for is_bold, units in ((False, regular), (True, bold)):
        assert Face("sans", 100, 120, is_bold=is_bold).width(text * 20) >= units * 2000 / 2048


def test_a_fitting_text_is_unchanged() -> None:
    assert CELLS.elided("0000:3b:00.0", 12) == "0000:3b:00.0"


def test_the_middle_goes_first() -> None:
    assert CELLS.elided("GPU-0f1c3a7e-5b2d-4c7e", 11) == "GPU-0…-4c7e"
    assert CELLS.elided("GPU-0f1c3a7e-5b2d-4c7e", 11, "...") == "GPU-...4c7e"


@given(st.text(max_size=60), st.integers(-3, 90), st.sampled_from([CELLS, MONO, SANS]))
def test_an_elided_text_fits(text: str, room: int, face: Face) -> None:
    assert face.width(face.elided(text, room)) <= max(0, room)


def test_facts_flow_over_lines_and_are_not_broken() -> None:
    assert CELLS.flowed(["one", "two", "three and four"], 10, " · ") == ["one · two", "three…four"]
