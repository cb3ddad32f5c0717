"""Requests to child processes, and progress messages."""

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
    """Sends a GET, or a POST with a body, and returns the answer. Raises URLError and OSError."""
    with _opener.open(urllib.request.Request(url, data=body), timeout=10) as response:
        answer: bytes = response.read()
        return answer


def say(text: str) -> None:
    """Prints progress."""
    print(f"  {text}", file=sys.stderr, flush=True)
