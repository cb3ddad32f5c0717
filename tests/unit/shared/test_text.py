"""Text that people read: what a reader cannot see is escaped."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise.text import Styled, escaped, escaped_json, escaped_json_bytes, rendered


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2J\n\u202eb\ud800", r"a\x1b[2J\x0a\u202eb\ud800"),
        ("\x07\r\t\x7f\x9b", r"\x07\x0d\x09\x7f\x9b"),
        ("\u2028\u2029\u00a0\u200b\ufeff", r"\u2028\u2029\xa0\u200b\ufeff"),
        ("\U000e0041", r"\U000e0041"),
        # Hangul fillers and the empty Braille pattern are printable, and blank in every font.
        ("\u3164\u115f\u2800", r"\u3164\u115f\u2800"),
        ("größe 機器 é", "größe 機器 é"),
        ("C:\\x", "C:\\x"),
    ],
)
def test_what_a_reader_cannot_see_is_an_escape(text: str, shown: str) -> None:
    assert escaped(text) == shown
    assert escaped(shown) == shown


def test_escapes_suit_the_place() -> None:
    assert escaped("größe", ascii_only=True) == r"gr\xf6\xdfe"
    assert escaped("a\tb\nc\x1b", keep="\n\t") == "a\tb\nc" + r"\x1b"
    assert escaped("\x1b", backslash=r"\\") == r"\\x1b"


@given(st.text())
def test_no_character_is_left_that_is_not_visible(text: str) -> None:
    for character in escaped(text):
        assert character == " " or unicodedata.category(character)[0] not in "CZ"


@given(
    st.recursive(st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner, max_size=3), max_leaves=5)
)
def test_json_keeps_its_value(value: object) -> None:
    for indent in (None, 2):
        plain = json.dumps(value, indent=indent, ensure_ascii=False)
        document = escaped_json(plain)
        assert json.loads(document) == value
        assert escaped(document, keep="\n") == document
    if not re.search("[\ud800-\udfff]", plain):
        assert json.loads(escaped_json_bytes(plain.encode())) == value


def test_a_line_is_one_line_and_only_styles_are_sequences() -> None:
    line = [Styled("a\x1b[0m\n", "1"), "b\nc", Styled("", "2")]
    assert (
        rendered([line, "d\ne", ""]) == "\x1b[1ma" + r"\x1b[0m\x0a" + "\x1b[0m" + r"b\x0ac" + "\n" + r"d\x0ae" + "\n\n"
    )
