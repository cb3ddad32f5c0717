"""Semantic versions as Kubernetes' CEL library reads and compares them (github.com/blang/semver/v4). Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from topowise.errors import ParseError

Version = tuple[int, int, int, tuple[str, ...]]
"""Major, minor, patch and the pre-release; build metadata does not count."""

_NUMBER: Final = r"(0|[1-9][0-9]{0,19})"
_WORDS: Final = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_GRAMMAR: Final = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_WORDS}))?(?:\+{_WORDS})?")
_UINT64_MAX: Final = (1 << 64) - 1
_EXPECTED: Final = "major.minor.patch, as in 1.2.3"


@lru_cache(maxsize=1024)
def parse(text: str) -> Version:
    """Returns a version. Raises ParseError."""
    match = _GRAMMAR.fullmatch(text) if len(text) <= 256 else None
    if match is None:
        raise ParseError("semantic version", text, _EXPECTED)
    major, minor, patch = (int(match[group]) for group in (1, 2, 3))
    words = tuple(match[4].split(".")) if match[4] else ()
    numbers = [int(word) for word in words if word.isdigit()]
    has_leading_zero = any(len(word) > 1 and word[0] == "0" for word in words if word.isdigit())
    if has_leading_zero or max(major, minor, patch, *numbers) > _UINT64_MAX:
        raise ParseError("semantic version", text, _EXPECTED)
    return major, minor, patch, words


def normalized(text: str) -> str:
    """Returns a text such as "v1.02" in the form "1.2.0" (normalizeAndParse in apiserver's semverlib.go)."""
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[index] = stripped if stripped[:1].isascii() and stripped[:1].isdigit() else f"0{stripped}"
    if len(parts) < 3 and any(mark in parts[-1] for mark in "+-"):
        raise ParseError("semantic version", text, "no pre-release or build metadata without a patch number")
    return ".".join(parts + ["0"] * (3 - len(parts)))


def compare(left: Version, right: Version) -> int:
    """Returns -1, 0 or 1."""
    if left[:3] != right[:3]:
        return -1 if left[:3] < right[:3] else 1
    before, after = left[3], right[3]
    if not before or not after:
        return bool(after) - bool(before) if before != after else 0
    for one, two in zip(before, after, strict=False):
        if one != two:
            return _compare_words(one, two)
    return (len(before) > len(after)) - (len(before) < len(after))


def _compare_words(one: str, two: str) -> int:
    """Numbers come before words, in numeric order."""
    if one.isdigit() and two.isdigit():
        return -1 if int(one) < int(two) else 1
    if one.isdigit() != two.isdigit():
        return -1 if one.isdigit() else 1
    return -1 if one < two else 1
