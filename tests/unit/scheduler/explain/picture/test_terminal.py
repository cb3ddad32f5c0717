"""The picture on a terminal: without colours by default, ASCII only if required; test_layout.py checks the width."""

from __future__ import annotations

import re
from collections.abc import Callable

from topowise_scheduler.explain.picture import Picture, terminal
from topowise_scheduler.explain.picture.measures import Face

WIDTH = Face("cells", 1, 1).width


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
