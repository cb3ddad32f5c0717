"""Which texts are whole numbers, and how readers treat every other text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise import cpuset, digits, kubeletconfig, nrt
from topowise.attributes import cores
from topowise.errors import ParseError

# `str.isdigit` or `int` takes each of them, and no component of Kubernetes does.
ODD = ["\u00b2", "\u0663", "\uff11", " 7", "7\n", "1_0", "+7", "-7", "", "9" * 5000]


@pytest.mark.parametrize("text", ODD)
def test_what_is_more_or_less_than_ascii_digits_is_no_number(text: str) -> None:
    assert digits.natural(text, digits.UINT64) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        # strconv.ParseInt(text, 10, 64) of Go 1.25, and strconv.Atoi on 64 bits.
        *((text, None) for text in ODD if text[:1] not in ("+", "-")),
        ("+7", 7),
        ("-7", -7),
        ("-0", 0),
        ("007", 7),
        ("0" * 5000 + "7", 7),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775809", None),
        ("+-7", None),
        ("+", None),
        ("0x7", None),
        ("7.0", None),
    ],
)
def test_integers_are_read_as_go_reads_them(text: str, number: int | None) -> None:
    assert digits.int64(text) == number


@given(st.integers(0, 2**64 - 1))
def test_every_resource_version_is_a_number(number: int) -> None:
    assert digits.natural(str(number), digits.UINT64) == number


@given(st.text(max_size=30))
def test_any_text_is_a_number_or_none(text: str) -> None:
    number = digits.natural(text)
    assert number is None or text.lstrip("0") == (str(number) if number else "")


@pytest.mark.parametrize("text", ODD[:-2])
def test_ids_of_cores_are_ascii_digits(text: str) -> None:
    for part in (f"{text}:0:0-1", f"0:{text}:0-1"):
        with pytest.raises(ParseError, match="cores"):
            cores.read(part)


def test_a_socket_that_the_kernel_does_not_know_travels_too() -> None:
    known = (cores.Core(-1, None, (0, 1)),)
    assert cores.read(cores.write(known)) == known


@pytest.mark.parametrize("text", ODD)
def test_zones_and_sets_have_ids_of_ascii_digits(text: str) -> None:
    assert nrt.zone_id(f"node-{text}") is None
    if text.strip() not in ("", "7"):
        with pytest.raises(ParseError, match="cpu list"):
            cpuset.parse(text)


def test_a_version_of_thousands_of_digits_is_unknown() -> None:
    known = kubeletconfig.with_defaults(kubeletconfig.KubeletConfiguration(), "v1." + "9" * 5000)
    assert known == kubeletconfig.with_defaults(kubeletconfig.KubeletConfiguration(), None)
