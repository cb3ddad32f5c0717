"""Reading a kernel's file tree (/sys or /proc), the root being a parameter.

Files come and go with kernel versions, options and hotplug, and reading an existing attribute may fail with EINVAL or
EOPNOTSUPP (Documentation/filesystems/sysfs.rst), so no read raises: each returns None, and the caller has a second
source or a default. Whatever an operator should know becomes one line in `problems`, so that the caller of a scan
decides what to log. A file that is merely missing is only told when the reader says what it does `instead`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from topowise import cpuset, files

# -1 is the only negative number the kernel prints in what we read ("unknown"); 18 digits fit into 64 bits.
_INTEGER = re.compile(r"-1|[0-9]{1,18}")
_SUFFIX = re.compile(r"[0-9]{1,9}")


class Tree:
    """Files below `root`; paths are relative to it. `problems` may be shared between trees."""

    def __init__(self, root: str, problems: list[str]) -> None:
        self.root = root.rstrip("/")
        self.problems = problems

    def tell(self, path: str, what: str, instead: str) -> None:
        """Records one problem: where, what was found, what is done instead."""
        self.problems.append(f"{self.root}/{path}: {what}; {instead}")

    def text(self, path: str, instead: str | None = None) -> str | None:
        """The content without surrounding white space and NULs (some kernels end a file with one)."""
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
        """The decimal number in a file, from -1 up."""
        text = self.text(path, instead)
        if text is None:
            return None
        if _INTEGER.fullmatch(text) is None:
            self.tell(path, f"{text[:80]!r} is no number", instead or "taken as missing")
            return None
        return int(text)

    def cpus(self, *lists: str, masks: tuple[str, ...] = (), instead: str | None = None) -> frozenset[int] | None:
        """The set in the first file that has one: files with a list ("0-3"), then with a mask ("0000000f").

        With `instead`, a problem is told if none of them has.
        """
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
        """The names in a directory, None without one."""
        try:
            return os.listdir(f"{self.root}/{path}")  # noqa: PTH208 - paths are plain text here: a scan makes thousands
        except OSError:
            return None

    def numbered(self, path: str, prefix: str) -> list[int]:
        """N of every entry that is wholly `<prefix>N`, ascending: `cpu` finds cpu10 but not cpufreq or cpulist."""
        suffixes = (name.removeprefix(prefix) for name in self.names(path) or () if name.startswith(prefix))
        return sorted(int(suffix) for suffix in suffixes if _SUFFIX.fullmatch(suffix))

    def link(self, path: str) -> str | None:
        """The target of a symbolic link, as it is written there."""
        try:
            return os.readlink(f"{self.root}/{path}")  # noqa: PTH115 - same
        except OSError:
            return None

    def has(self, path: str) -> bool:
        """Whether there is such an entry, be it a link to nowhere."""
        return os.path.lexists(f"{self.root}/{path}")
