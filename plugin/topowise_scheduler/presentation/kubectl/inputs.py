"""Sources of `-f`, as for kubectl: a file, `-` for stdin, a URL, or a directory."""

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


def texts(name: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents. Raises SourceError."""
    if name == "-":
        yield "stdin", sys.stdin.buffer.read()
    elif name.startswith(_SCHEMES):
        yield name, _fetched(name)
    elif Path(name).is_dir():
        # Without subdirectories, as kubectl without --recursive.
        paths = sorted(path for path in Path(name).iterdir() if path.suffix in _SUFFIXES and not path.is_dir())
        if not paths:
            raise SourceError(name, f"is a directory without any {' or '.join(_SUFFIXES)}, expected some")
        for path in paths:
            yield str(path), _read(path)
    else:
        yield name, _read(Path(name))


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
