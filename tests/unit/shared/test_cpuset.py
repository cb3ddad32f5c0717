"""Sets of CPUs read and written as the kernel does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise import cpuset
from topowise.errors import ParseError


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("", set()),
        ("\n", set()),
        ("\0\n", set()),
        ("  (null)", set()),
        ("0", {0}),
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("0-3,8\n\0", {0, 1, 2, 3, 8}),
        ("250-251, 255", {250, 251, 255}),
    ],
)
def test_a_list_is_read_with_the_quirks_of_real_kernels(text: str, members: set[int]) -> None:
    assert cpuset.parse(text) == members


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1,,2", "0-99999999", "1;2", "²", "9" * 5000])
def test_damage_is_an_error_that_shows_the_text(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        cpuset.parse(text)
    assert repr(text[:70])[:-1] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "members"),
    [("ff", set(range(8))), ("0000,000000ff,00000000", set(range(32, 40))), ("", set()), ("00000000,00000001", {0})],
)
def test_a_mask_is_words_highest_first(text: str, members: set[int]) -> None:
    assert cpuset.parse_mask(text) == members


@pytest.mark.parametrize("text", ["g", "1ffffffff", "-1", "0x"])
def test_a_damaged_mask_is_an_error(text: str) -> None:
    with pytest.raises(ParseError):
        cpuset.parse_mask(text)


@given(st.frozensets(st.integers(0, 2000)))
def test_reading_what_was_written_gives_it_back(members: frozenset[int]) -> None:
    assert cpuset.parse(cpuset.to_text(members)) == members


def test_neighbours_are_joined() -> None:
    assert cpuset.to_text([8, 0, 1, 2, 10, 11]) == "0-2,8,10-11"
