"""How long and with what parsers are tried."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from parsers import Parser

# `make fuzz` asks for more.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
_SECONDS = 1.0

# Pieces of the grammars that are parsed, and what has broken parsers before.
_PIECES = [
    *'0-9:;,.[]{}"/\\%&*!|><?#@`~+=_ \t\n\r\0',
    *("null", "true", "-1", "1e999", "1e-999", "0x", "0-8191", "99999999999999999999", ".inf", ".nan", "<<: *a", "&a "),
    *("*a", "!!binary ", "!!int ", "!!python/object:x ", "2001-99-99", "\u0661", "\ufeff", "\x85", "\x1b[2J", "---\n"),
    *("Ki", "n", "E", "m", "0:0:0/1", "[[", "{}", '"a":', "[]", '{"a":1}', "::", "\x7f", "\ud800"),
]
_TEXT_PIECE = st.sampled_from(_PIECES) | st.text(max_size=5)
_BYTE_PIECE = _TEXT_PIECE.map(lambda piece: piece.encode("utf-8", "surrogatepass")) | st.binary(max_size=5)


@st.composite
def damaged(draw: st.DrawFn, samples: tuple[bytes, ...]) -> bytes:
    """Returns a sample in which some places were cut out, overwritten, repeated or swapped."""
    text = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 12)))
        how = draw(st.integers(0, 3))
        if how == 0:
            text = text[:at] + draw(_BYTE_PIECE) + text[end:]
        elif how == 1:
            text = text[:at] + text[at:end] * draw(st.integers(0, 5)) + text[end:]
        elif how == 2:
            donor = draw(st.sampled_from(samples))
            text = text[:at] + donor[draw(st.integers(0, len(donor))) :]
        else:
            text = text[:at] + draw(_BYTE_PIECE) * draw(st.integers(1, 40)) + text[at:]
    return text


def anything(samples: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """Samples and their ruins, and bytes of any kind."""
    pieces = st.lists(_BYTE_PIECE, max_size=12).map(b"".join)
    return damaged(samples) | pieces | st.binary(max_size=60)


def tried(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator: as many examples as asked for."""
    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=checks)(function)


def hold(parser: Parser, data: bytes, seconds: float = _SECONDS) -> bool:
    """Checks the contract, and returns whether the parser returned a value. Re-raises unexpected exceptions."""
    begun = time.process_time()
    try:
        parser.parse(data)
        said = None
    except parser.refusals as exc:
        said = str(exc)
    taken = time.process_time() - begun
    assert taken < seconds, f"{parser.name}: {taken:.1f} s for {len(data)} bytes"
    if said is not None:
        assert said
        assert len(said) < 2000, f"{parser.name} says {len(said)} characters"
        assert "\n" not in said and "\x1b" not in said, f"{parser.name} says {said!r}"
    return said is None
