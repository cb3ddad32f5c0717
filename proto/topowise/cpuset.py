"""Sets of CPUs (and of NUMA nodes) as the kernel and the kubelet spell them: "0-3,8,10-11".

A set is a plain `frozenset[int]`; this module only reads and writes the spelling.
Kernel quirks handled here, all seen on real machines: a trailing NUL after the newline (5.15-rc), an empty line for the
empty set, "(null)" for an unset `nohz_full`, and `cpumap` masks of comma-separated 32-bit words.
"""

from __future__ import annotations

from collections.abc import Iterable

from topowise.errors import ParseError

# One list names at most a few thousand CPUs; a range wider than this is damage, not a machine.
_MAX_ID = 1 << 20


def parse(text: str) -> frozenset[int]:
    """The set a cpulist names. The empty text is the empty set. Raises ParseError."""
    stripped = text.strip(" \t\r\n\0")
    if stripped in ("", "(null)"):
        return frozenset()
    members: set[int] = set()
    for part in stripped.split(","):
        first, dash, last = part.strip().partition("-")
        if not _is_id(first) or (dash and not _is_id(last)):
            raise ParseError("cpu list", stripped, 'ids and ranges such as "0-3,8"')
        low = int(first)
        high = int(last) if dash else low
        if high < low or high > _MAX_ID:
            raise ParseError("cpu list", stripped, f"ascending ranges of ids up to {_MAX_ID}")
        members.update(range(low, high + 1))
    return frozenset(members)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def parse_mask(text: str) -> frozenset[int]:
    """The set of a kernel bitmap ("00000000,000000ff": 32-bit words, highest first). Raises ParseError."""
    stripped = text.strip(" \t\r\n\0")
    bits = 0
    for word in stripped.split(",") if stripped else ():
        try:
            number = int(word, 16)
        except ValueError:
            number = -1
        if not 0 <= number < 1 << 32:
            raise ParseError("cpu mask", stripped, "comma-separated 32-bit hexadecimal words")
        bits = bits << 32 | number
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)


def spell(members: Iterable[int]) -> str:
    """The shortest list that names the set, ids ascending: {0,1,2,8} -> "0-2,8"."""
    ranges: list[list[int]] = []
    for member in sorted(set(members)):
        if ranges and member == ranges[-1][1] + 1:
            ranges[-1][1] = member
        else:
            ranges.append([member, member])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
