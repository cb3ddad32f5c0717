"""Sets of CPUs or NUMA nodes in the list format of the kernel and the kubelet: "0-3,8,10-11".

A set is a plain `frozenset[int]`, or a mask (bit i for id i) where there are many sets. A few characters can name many
ids, so ids and the width of all ranges together are limited. Kernel quirks handled here, all seen on real machines: a
trailing NUL after the newline (5.15-rc), an empty line for the empty set, "(null)" for an unset `nohz_full`, and
`cpumap` masks of comma-separated 32-bit words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from topowise import digits
from topowise.errors import ParseError

MAX_ID: Final = (1 << 13) - 1
"""The kernel's limits are 8192 CPUs (NR_CPUS, arch/x86/Kconfig) and 1024 nodes; a larger id means damaged text."""

# Hand-written lists may name an id twice, so the ranges may be wider than all ids together.
_MAX_WIDTH: Final = 2 * (MAX_ID + 1)
_WORD: Final = re.compile(r"[0-9a-fA-F]{1,8}")


def parse(text: str) -> frozenset[int]:
    """Returns the set of a cpulist; empty text is the empty set. Raises ParseError."""
    members: set[int] = set()
    for low, high in _ranges(text):
        members.update(range(low, high + 1))
    return frozenset(members)


def mask(text: str) -> int:
    """Returns the set as a mask, without enumerating its members. Raises ParseError."""
    bits = 0
    for low, high in _ranges(text):
        bits |= ((1 << (high - low + 1)) - 1) << low
    return bits


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    stripped = text.strip(" \t\r\n\0")
    if stripped in ("", "(null)"):
        return
    width = 0
    for part in stripped.split(","):
        first, dash, last = part.strip().partition("-")
        low = digits.natural(first)
        high = digits.natural(last) if dash else low
        if low is None or high is None:
            raise ParseError("cpu list", stripped, 'ids and ranges such as "0-3,8"')
        if high < low or high > MAX_ID:
            raise ParseError("cpu list", stripped, f"ascending ranges of ids up to {MAX_ID}")
        width += high - low + 1
        if width > _MAX_WIDTH:
            raise ParseError("cpu list", stripped, f"ranges of together up to {_MAX_WIDTH} ids")
        yield low, high


def parse_mask(text: str) -> frozenset[int]:
    """Returns the set of a kernel bitmap ("00000000,000000ff": 32-bit words, highest first). Raises ParseError."""
    stripped = text.strip(" \t\r\n\0")
    if not stripped:
        return frozenset()
    words = stripped.split(",")
    if not all(map(_WORD.fullmatch, words)):
        raise ParseError("cpu mask", stripped, "comma-separated 32-bit hexadecimal words")
    bits = int("".join(word.zfill(8) for word in words), 16)
    if bits.bit_length() > MAX_ID + 1:
        raise ParseError("cpu mask", stripped, f"ids up to {MAX_ID}")
    return frozenset(position for position, bit in enumerate(f"{bits:b}"[::-1]) if bit == "1")


def to_text(members: Iterable[int]) -> str:
    """Returns the shortest list of the set, ids ascending: {0,1,2,8} -> "0-2,8"."""
    ranges: list[list[int]] = []
    for member in sorted(set(members)):
        if ranges and member == ranges[-1][1] + 1:
            ranges[-1][1] = member
        else:
            ranges.append([member, member])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
