"""Selectors that only other objects to_text, and quantities by their rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.apiserver import quantities, selectors
from sandbox.apiserver.errors import Json, StatusError
from topowise import quantity


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_label_selector_objects_choose(selector: Json | None, chosen: bool) -> None:
    assert selectors.from_label_selector(selector)({"a": "1"}) is chosen


@pytest.mark.parametrize(
    ("text", "chosen"), [("a>1", True), ("a>+1", True), ("a<-3", False), ("a>9", False), ("b>1", False), ("c>1", False)]
)
def test_numbers_are_compared_as_go_reads_them(text: str, chosen: bool) -> None:
    assert selectors.labels(text)({"a": "7", "b": "\u00b2", "c": "9" * 30}) is chosen


@pytest.mark.parametrize("bound", ["\u00b2", "--5", "1_0", "9" * 5000])
def test_a_bound_that_go_does_not_read_is_refused(bound: str) -> None:
    with pytest.raises(StatusError, match="must be an integer"):
        selectors.labels(f"a>{bound}")


_DIGITS = st.from_regex(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,3})?", fullmatch=True)
_SUFFIXES = st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "E2"])


@given(_DIGITS, _SUFFIXES)
def test_canonical_spelling_is_stable_and_keeps_the_number(digits: str, suffix: str) -> None:
    spelled = quantities.canonical(digits + suffix)
    assert quantities.canonical(spelled) == spelled
    assert quantity.milli_value(spelled) == quantity.milli_value(digits + suffix)


@pytest.mark.parametrize("text", ["", "abc", "1x", "--1", "1 Gi", True])
def test_what_is_no_quantity_is_refused(text: str | bool) -> None:
    with pytest.raises(ValueError, match="quantities must match"):
        quantities.canonical(text)


@pytest.mark.parametrize(
    ("written", "read"), [("-0.5", "-500m"), ("1E", "1E"), ("1n", "1n"), ("0.1n", "1n"), (".5", "500m")]
)
def test_odd_quantities_have_a_spelling(written: str, read: str) -> None:
    assert quantities.canonical(written) == read
