"""For any input, every parser returns a value or an error of a single line, at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import anything, hold, tried
from parsers import Parser, parsers


def _id(parser: Parser) -> str:
    return parser.name


@pytest.mark.parametrize("parser", parsers(), ids=_id)
def test_samples_are_read(parser: Parser) -> None:
    # All parsers but the parser of certificates, which needs real certificates.
    assert all(hold(parser, sample) for sample in parser.samples) != (parser.name == "kubeconfig")


@pytest.mark.parametrize("parser", parsers(), ids=_id)
def test_anything_is_read_or_refused(parser: Parser) -> None:
    @tried
    @given(anything(parser.samples))
    def check(text: bytes) -> None:
        hold(parser, text)

    check()


@tried
@given(st.data())
def test_text_that_a_parser_reads_is_read_or_refused_by_every_parser(data: st.DataObject) -> None:
    written = data.draw(st.sampled_from(parsers()))
    text = data.draw(st.sampled_from(written.samples))
    for parser in parsers():
        hold(parser, text)
