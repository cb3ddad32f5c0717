"""The pods fingerprint has upstream's known answers."""

import pytest

from topowise import fingerprint
from topowise.errors import ParseError


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([], "pfp0v001ef46db3751d8e999"),
        ([("default", "pod-1")], "pfp0v0010c5658d8bde5056f"),
        (
            [("ns1", "n1"), ("ns1", "n2"), ("ns2", "n1"), ("ns3", "n1"), ("ns3", "n2")],
            "pfp0v001b92008c14168b3a6",
        ),
    ],
)
def test_known_answers(pods: list[tuple[str, str]], expected: str) -> None:
    assert fingerprint.of(pods) == expected
    assert fingerprint.of(reversed(pods)) == expected
    fingerprint.check(expected)


@pytest.mark.parametrize(
    "text", ["", "pfp0", "pfp1v001ef46db3751d8e999", "pfp0v002ef46db3751d8e999", "pfp0v001EF46DB3751D8E999"]
)
def test_a_foreign_or_damaged_fingerprint_is_an_error(text: str) -> None:
    with pytest.raises(ParseError):
        fingerprint.check(text)
