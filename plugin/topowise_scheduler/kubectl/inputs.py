"""Sources of `-f`, as for kubectl: a file, `-` for stdin, or a directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from topowise.errors import SourceError

_SUFFIXES: Final = (".json", ".yaml", ".yml")


def texts(name: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents. Raises SourceError."""
    if name == "-":
        yield "stdin", sys.stdin.buffer.read()
    elif name.startswith(("http://", "https://")):
        raise SourceError(name, "is a URL, expected a file; download it first, or pipe it to -f -")
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
