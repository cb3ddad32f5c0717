"""Requests to our own children, and words about how far things are."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable
from typing import Any, Final

import msgspec

# No proxy from the environment: this is loopback.
_opener: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
encode: Final[Callable[[Any], bytes]] = msgspec.json.encode


def fetch(url: str, body: bytes | None = None) -> bytes:
    """A GET, or a POST with a body. Raises URLError and OSError."""
    with _opener.open(urllib.request.Request(url, data=body), timeout=10) as response:
        answer: bytes = response.read()
        return answer


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(f"  {text}", file=sys.stderr, flush=True)
