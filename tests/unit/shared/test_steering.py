"""The annotations of steering: what is written can be read, and nothing else."""

from __future__ import annotations

import pytest

from topowise import steering
from topowise.errors import ParseError
from topowise.steering import Request, Status


def test_documents_are_read_as_they_were_written() -> None:
    request, status = Request("a1", 1, 2, 10.0), Status("a1", "rejected", "why")
    assert steering.encode(request) == '{"id":"a1","numa":1,"containers":2,"seconds":10.0}'
    assert steering.encode(Status("a1", "labelled")) == '{"id":"a1","state":"labelled"}'
    assert steering.decode_request(steering.encode(request)) == request
    assert steering.decode_status(steering.encode(status)) == status


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"id":"","numa":1,"containers":1,"seconds":1}',
        '{"id":"a","numa":-1,"containers":1,"seconds":1}',
        '{"id":"a","numa":64,"containers":1,"seconds":1}',
        '{"id":"a","numa":1,"containers":0,"seconds":1}',
        '{"id":"a","numa":1,"containers":1,"seconds":0}',
        '{"id":"a","numa":1,"containers":1,"seconds":31}',
        '{"id":"a","numa":1,"containers":1,"seconds":1,"more":1}',
        '{"id":"' + "a" * 600 + '","numa":1,"containers":1,"seconds":1}',
    ],
)
def test_an_invalid_request_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        steering.decode_request(text)
