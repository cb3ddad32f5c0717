"""Reads files below a kernel's file tree (/sys or /proc).

Files differ by kernel version, options and hotplug, and reading an existing attribute may fail with EINVAL or
EOPNOTSUPP (Documentation/filesystems/sysfs.rst). So no read raises: each returns None, and the caller uses a second
source or a default. What an operator should know becomes a line in `problems`; the caller of a scan decides what to
log. A missing file is reported only if the caller says what it does `instead`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from topowise import cpuset, files

# -1 ("unknown") is the only negative number in the files that are read; 18 digits fit into 64 bits.
_INTEGER = re.compile(r"-1|[0-9]{1,18}")
_SUFFIX = re.compile(r"[0-9]{1,9}")


class Tree:
    """Files below `root`; paths are relative to it. Several trees may share `problems`."""

    def __init__(self, root: str, problems: list[str]) -> None:
        self.root = root.rstrip("/")
        self.problems = problems

    def tell(self, path: str, what: str, instead: str) -> None:
        """Records a problem: path, value, and what is used instead."""
        self.problems.append(f"{self.root}/{path}: {what}; {instead}")

    def text(self, path: str, instead: str | None = None) -> str | None:
        """Returns the content without surrounding white space and NULs (some kernels end a file with a NUL)."""
        try:
            content = files.read_regular(f"{self.root}/{path}")
        except OSError as exc:
            is_missing = isinstance(exc, FileNotFoundError | NotADirectoryError)
            if instead is not None or not is_missing:
                what = "missing" if is_missing else f"unreadable ({exc.strerror})"
                self.tell(path, what, instead or "taken as missing")
            return None
        return content.decode("ascii", "replace").strip(" \t\r\n\0")

    def integer(self, path: str, instead: str | None = None) -> int | None:
        """Returns the decimal number in a file, from -1 up."""
        text = self.text(path, instead)
        if text is None:
            return None
        if _INTEGER.fullmatch(text) is None:
            self.tell(path, f"{text[:80]!r} is not a number", instead or "taken as missing")
            return None
        return int(text)

    def cpus(self, *lists: str, masks: tuple[str, ...] = (), instead: str | None = None) -> frozenset[int] | None:
        """Returns the CPU set in the first readable file: files with a list ("0-3") first, then with a mask
        ("0000000f"). With `instead`, a problem is recorded if no file is readable."""
        readers: list[tuple[str, Callable[[str], frozenset[int]]]] = [(path, cpuset.parse) for path in lists]
        readers += [(path, cpuset.parse_mask) for path in masks]
        for path, parse in readers:
            text = self.text(path)
            if text is None:
                continue
            try:
                return parse(text)
            except ValueError as exc:
                self.tell(path, str(exc), "taken as missing")
        if instead is not None:
            self.tell(readers[0][0], "no usable set of CPUs", instead)
        return None

    def names(self, path: str) -> list[str] | None:
        """Returns the names in a directory, None if there is no directory."""
        try:
            return os.listdir(f"{self.root}/{path}")  # noqa: PTH208 - paths are plain text here: a scan makes thousands
        except OSError:
            return None

    def numbered(self, path: str, prefix: str) -> list[int]:
        """Returns N of every entry that is exactly `<prefix>N`, ascending: `cpu` matches cpu10, not cpufreq."""
        suffixes = (name.removeprefix(prefix) for name in self.names(path) or () if name.startswith(prefix))
        return sorted(int(suffix) for suffix in suffixes if _SUFFIX.fullmatch(suffix))

    def link(self, path: str) -> str | None:
        """Returns the target of a symbolic link, as written there."""
        try:
            return os.readlink(f"{self.root}/{path}")  # noqa: PTH115 - same
        except OSError:
            return None

    def has(self, path: str) -> bool:
        """Whether the entry exists, also as a dangling link."""
        return os.path.lexists(f"{self.root}/{path}")
