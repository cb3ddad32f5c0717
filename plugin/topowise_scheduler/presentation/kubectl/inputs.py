"""What `-f` may name, as kubectl has it: a file, `-` for stdin, an address, or a directory with everything in it."""

from __future__ import annotations

import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from topowise.errors import SourceError

_SUFFIXES: Final = (".json", ".yaml", ".yml")
_SCHEMES: Final = ("http://", "https://")
_TIMEOUT_S: Final = 30
_MOST_BYTES: Final = 64 << 20


def texts(given: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents. Raises SourceError."""
    if given == "-":
        yield "stdin", sys.stdin.buffer.read()
    elif given.startswith(_SCHEMES):
        yield given, _fetched(given)
    elif Path(given).is_dir():
        # Not those below it, as kubectl without --recursive.
        found = sorted(one for one in Path(given).iterdir() if one.suffix in _SUFFIXES and not one.is_dir())
        if not found:
            raise SourceError(given, f"is a directory without any {' or '.join(_SUFFIXES)}, expected some")
        for one in found:
            yield str(one), _read(one)
    else:
        yield given, _read(Path(given))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise SourceError(str(path), f"cannot be read: {exc.strerror}") from exc


def _fetched(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as response:
            text: bytes = response.read(_MOST_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as exc:
        why = exc.reason if isinstance(exc, urllib.error.URLError) else exc
        raise SourceError(address, f"cannot be fetched: {why}") from exc
    if len(text) > _MOST_BYTES:
        raise SourceError(address, f"is longer than {_MOST_BYTES >> 20} MiB, expected objects")
    return text
