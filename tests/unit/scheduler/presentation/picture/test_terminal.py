"""The picture on a terminal: within the width, without colours by default, ASCII only if required."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from topowise_scheduler.presentation.picture import Picture, terminal
from topowise_scheduler.presentation.picture.font_metrics import Face

WIDTH = Face("cells", 1, 1).width


@pytest.mark.parametrize("width", [24, 36, 60, 80, 81, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int, picture: Picture) -> None:
    for ascii_only in (False, True):
        assert max(map(WIDTH, terminal(picture, width=width, ascii_only=ascii_only).splitlines())) <= width


def test_a_terminal_without_width_counts_as_the_narrowest(picture_of: Callable[[str], Picture]) -> None:
    assert terminal(picture_of("tiny"), width=0) == terminal(picture_of("tiny"), width=24)


def test_ascii_output_has_no_replacement_characters(picture_of: Callable[[str], Picture]) -> None:
    for name in ("two-zones", "large", "group", "odd", "long-names"):
        text = terminal(picture_of(name), ascii_only=True)
        assert text.isascii()
        assert "?" not in text


def test_plain_text_has_no_codes_and_no_blanks_at_the_end(picture: Picture) -> None:
    text = terminal(picture)
    assert "\x1b" not in text
    assert not re.search(r" $", text, re.MULTILINE)


def test_colour_changes_nothing_but_the_colour(picture: Picture) -> None:
    coloured = terminal(picture, colour=True)
    without = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    # A coloured bar has no line after the tag.
    plain = [line.replace("━", " ") for line in terminal(picture).splitlines()]
    assert [line.rstrip() for line in without.splitlines()] == [line.rstrip() for line in plain]
    for line in coloured.splitlines():
        codes = re.findall(r"\x1b\[[\d;]*m", line)
        assert not codes or codes[-1] == "\x1b[0m"


def test_a_cpu_is_a_cell_and_rows_begin_with_ids(picture_of: Callable[[str], Picture]) -> None:
    lines = terminal(picture_of("two-zones"), width=80).splitlines()
    assert lines[5].startswith("│  0 ▓BBBBDDDAA······ ")
    assert lines[6].startswith("│ 32 ▓BBBBDDDAA······ ")


def test_counts_have_cells_without_ids(picture_of: Callable[[str], Picture]) -> None:
    lines = terminal(picture_of("two-zones-counts"), width=80).splitlines()
    assert lines[6].startswith("│ ▓▓AAAABBBBBBBBDDDDDD············ ")


def test_pods_beyond_the_width_of_a_bar_share_a_part(picture_of: Callable[[str], Picture]) -> None:
    bar = next(line for line in terminal(picture_of("crowded"), width=80).splitlines() if "◆" in line)
    assert set(bar.strip("│ ")) == {"▓", "◆", "·"}


def test_distances_are_a_line_of_the_header(picture_of: Callable[[str], Picture]) -> None:
    assert "distances 10 21 14, 21 10 24, 14 24 10" in terminal(picture_of("odd"))
