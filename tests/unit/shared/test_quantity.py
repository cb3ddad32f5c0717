"""Quantities are exact integers, rounded as apimachinery rounds."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from topowise import quantity
from topowise.errors import ParseError


@pytest.mark.parametrize(
    ("text", "units", "milli"),
    [
        ("0", 0, 0),
        ("500m", 1, 500),
        ("1", 1, 1000),
        ("1.5", 2, 1500),
        (".5", 1, 500),
        ("2.", 2, 2000),
        ("1k", 1000, 1_000_000),
        ("2Gi", 2 << 30, 2000 << 30),
        ("0.5Mi", 1 << 19, 1000 << 19),
        ("1e3", 1000, 1_000_000),
        ("12E2", 1200, 1_200_000),
        ("1E", 10**18, 10**21),
        ("100n", 1, 1),
        ("1500u", 1, 2),
        ("-1500m", -2, -1500),
        ("-100n", -1, -1),
        (7, 7, 7000),
    ],
)
def test_value_and_milli_value_round_away_from_zero(text: str | int, units: int, milli: int) -> None:
    assert quantity.value(text) == units
    assert quantity.milli_value(text) == milli


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1KB", "ki", "1e", "--1", "1.2.3", "0x10", "١", "1Kii", "NaN", "inf"])
def test_a_text_that_is_no_quantity_is_named_in_the_error(text: str) -> None:
    with pytest.raises(ParseError, match="quantity"):
        quantity.value(text)


def test_a_float_is_refused_because_it_is_not_exact() -> None:
    with pytest.raises(ParseError):
        quantity.value(1.5)  # type: ignore[arg-type]


def test_whole_is_none_for_fractions_and_for_what_int64_cannot_hold() -> None:
    assert quantity.whole("2000m") == 2
    assert quantity.whole("1500m") is None
    assert quantity.whole("9223372036854775807") == 9223372036854775807
    assert quantity.whole("9223372036854775808") is None


@given(st.integers(-(10**15), 10**15), st.sampled_from(["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti"]))
def test_it_agrees_with_the_official_parser(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    official: Decimal = parse_quantity(text)
    assert quantity.whole(text) == (
        int(official) if official == official.to_integral_value() and abs(official) < 2**63 else None
    )
    assert abs(quantity.milli_value(text)) - 1 < abs(official) * 1000 <= abs(quantity.milli_value(text))


@given(st.integers(0, 10**12))
def test_spelling_a_cpu_amount_and_reading_it_gives_it_back(milli: int) -> None:
    assert quantity.for_resource("cpu", quantity.to_text("cpu", milli)) == milli


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "0"), (1023, "1023"), (1536 << 20, "1.5Gi"), (64 << 30, "64Gi"), (117 << 30, "117Gi")]
)
def test_bytes_are_written_for_people(amount: int, text: str) -> None:
    assert quantity.human_bytes(amount) == text
