"""The functions and operators of CEL that device selectors use. Pure.

Each takes the run and its arguments, and raises EvaluationError for arguments that it is not defined for.

Upstream: github.com/google/cel-go/common/stdlib and ext/strings.go; quantity.go and semverlib.go in
k8s.io/apiserver/pkg/cel/library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from topowise import quantity
from topowise.errors import ParseError
from topowise_scheduler.options.claims import semver
from topowise_scheduler.options.claims.cel.values import (
    Optional,
    Quantity,
    Run,
    Version,
    compare,
    contains,
    integer,
    is_equal,
    no_overload,
)
from topowise_scheduler.options.claims.work import EvaluationError, NotModelledError

Function = Callable[..., Any]

_BILLION: Final = 1_000_000_000
_WHOLE: Final = re.compile(r"[+-]?\d+([kMGTPE]|[KMGTPE]i|[eE]\+?\d+)?", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?\d{1,30}", re.ASCII)


def _are(kind: type, *values: Any) -> None:
    for value in values:
        if type(value) is not kind:
            raise no_overload()


# --- Operators ---


def add(run: Run, left: Any, right: Any) -> Any:
    """left + right."""
    kind = type(left)
    _are(kind, right)
    if kind is int:
        return integer(left + right)
    if kind is str:
        run.spend((len(left) + len(right)) // 16)
        return left + right
    if kind is list:
        run.spend(len(left) + len(right))
        return left + right
    raise no_overload()


def arithmetic(operation: Callable[[int, int], int]) -> Function:
    """Returns an operator of integers."""

    def operator(run: Run, left: Any, right: Any) -> int:
        _are(int, left, right)
        return integer(operation(left, right))

    return operator


def quotient(left: int, right: int) -> int:
    """left / right, the part before the point."""
    if right == 0:
        raise EvaluationError("division by zero")
    number = abs(left) // abs(right)
    return number if (left < 0) == (right < 0) else -number


def remainder(left: int, right: int) -> int:
    """left % right, with the sign of left."""
    return left - right * integer(quotient(left, right))


def negate(run: Run, value: Any) -> int:
    """-value."""
    _are(int, value)
    return integer(-value)


# --- Sizes and conversions ---


def _size(run: Run, value: Any) -> int:
    if type(value) in (str, list) or isinstance(value, dict):
        return len(value)
    raise no_overload()


def _int(run: Run, value: Any) -> int:
    if type(value) is int:
        return value
    if type(value) is str:
        if _INTEGER.fullmatch(value) is None:
            raise EvaluationError("type conversion error from 'string' to 'int'")
        return integer(int(value))
    raise no_overload()


# --- Texts ---


def _text(function: Function, *kinds: type) -> Function:
    """Returns a function of a text and arguments of these kinds."""

    def checked(run: Run, text: Any, *arguments: Any) -> Any:
        _are(str, text)
        for kind, argument in zip(kinds, arguments, strict=True):
            _are(kind, argument)
        run.read(text)
        # kube-scheduler's cost of a search is the product of the lengths.
        run.spend(sum([len(text) * len(argument) for argument in arguments if type(argument) is str]) >> 13)
        return function(text, *arguments)

    return checked


def _ascii_lower(text: str) -> str:
    return "".join([letter.lower() if letter.isascii() else letter for letter in text])


def _ascii_upper(text: str) -> str:
    return "".join([letter.upper() if letter.isascii() else letter for letter in text])


def _index(text: str, index: int) -> int:
    if not 0 <= index <= len(text):
        raise EvaluationError(f"index out of range: {index}")
    return index


def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is not None and start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    return text[_index(text, start) : len(text) if end is None else _index(text, end)]


# --- Regular expressions ---

# The part of RE2 that Python's module reads alike, and in which only characters are repeated.
_PATTERN_TOKEN: Final = re.compile(
    r"""(?P<atom> \\[.^$*+?()\[\]{}|/\-dDwW] | \[\^?[A-Za-z0-9_.:/ ,-]+\] | [A-Za-z0-9_:/ ,;=@%<>"'~!&-] | \. )
    (?: (?P<endless>[*+]|\{\d{1,2},\}) | \? | \{\d{1,2}(?:,\d{1,2})?\} )?
    | (?P<bar>\|) | (?P<end>\$) | \^ | \( | \)(?![*+?{])""",
    re.VERBOSE | re.ASCII,
)
# Steps of Python's module that take as long as a unit.
_STEPS: Final = 32


@lru_cache(maxsize=1024)
def _pattern(text: str) -> tuple[re.Pattern[str], int, int]:
    """Returns a pattern, the number of its parts that can match at many lengths or begin at many places, and of its
    alternatives. Raises NotModelledError."""
    position, parts, alternatives, translated = 0, 0 if text.startswith("^") and "|" not in text else 1, 1, ""
    while position < len(text):
        token = _PATTERN_TOKEN.match(text, position)
        if token is None or len(text) > 256:
            raise NotModelledError("a regular expression that is not simple")
        quantified = token["atom"] is not None and token.end() > token.end("atom")
        parts += quantified
        alternatives += token["bar"] is not None
        translated += r"\Z" if token["end"] else token[0]
        position = token.end()
    try:
        return re.compile(translated, re.ASCII), parts, alternatives
    except (re.error, OverflowError) as error:
        raise NotModelledError(f"a regular expression: {error}") from error


def _matches(run: Run, text: Any, pattern: Any) -> bool:
    _are(str, text, pattern)
    compiled, parts, alternatives = _pattern(pattern)
    # Python's module goes back: each such part may be tried with each length.
    run.spend(alternatives * (len(text) + 1) ** parts * len(pattern) // _STEPS + (len(text) * len(pattern) >> 12))
    return compiled.search(text) is not None


# --- Quantities and versions ---


def _quantity(run: Run, text: Any) -> Quantity:
    _are(str, text)
    nano = _read(_nano, text)
    if nano % _BILLION == 0 and _WHOLE.fullmatch(text) is None:
        # Kubernetes does not call 1.0 or 1000m an integer.
        raise NotModelledError("an integer quantity that is written as a fraction")
    return Quantity(nano)


def _nano(text: str) -> int:
    try:
        return quantity.nano_value(text)
    except ParseError:
        # Kubernetes also reads "-" and long exponents.
        if len(text) > 20 or not re.search(r"\d", text, re.ASCII):
            raise NotModelledError(f"the quantity {text[:40]!r} in a CEL expression") from None
        raise


def _read(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ParseError as error:
        raise EvaluationError(str(error)) from error


def _version(run: Run, text: Any, normalize: Any = False) -> Version:
    _are(str, text)
    _are(bool, normalize)
    return Version(_read(_normalized if normalize else semver.parse, text))


def _normalized(text: str) -> semver.Version:
    return semver.parse(semver.normalized(text))


def _compare_to(run: Run, left: Any, right: Any) -> int:
    if type(left) is Version and type(right) is Version:
        return semver.compare(left.version, right.version)
    _are(Quantity, left, right)
    return compare(run, left.nano, right.nano)


def _is_integer(run: Run, value: Any) -> bool:
    _are(Quantity, value)
    number, rest = divmod(value.nano, _BILLION)
    return bool(rest == 0 and -quantity.INT64_MAX - 1 <= number <= quantity.INT64_MAX)


def _as_integer(run: Run, value: Any) -> int:
    if not _is_integer(run, value):
        raise EvaluationError("cannot convert value to integer")
    return int(value.nano // _BILLION)


def _part(index: int) -> Function:
    def part(run: Run, value: Any) -> int:
        _are(Version, value)
        return int(value.version[index])

    return part


def _includes(run: Run, value: Any, item: Any) -> bool:
    """Of a list whether it has the item, of another value whether it is the item."""
    return contains(run, item, value) if type(value) is list else is_equal(run, value, item)


# --- Optional values ---


def _has_value(run: Run, value: Any) -> bool:
    _are(Optional, value)
    return bool(value.values)


GLOBAL: Final[Mapping[tuple[str, int], Function]] = {
    ("size", 1): _size,
    ("int", 1): _int,
    ("matches", 2): _matches,
    ("quantity", 1): _quantity,
    ("semver", 1): _version,
    ("semver", 2): _version,
}
"""Functions by name and number of arguments."""

MEMBERS: Final[Mapping[tuple[str, int], Function]] = {
    ("size", 1): _size,
    ("startsWith", 2): _text(str.startswith, str),
    ("endsWith", 2): _text(str.endswith, str),
    ("contains", 2): _text(str.__contains__, str),
    ("matches", 2): _matches,
    ("lowerAscii", 1): _text(_ascii_lower),
    ("upperAscii", 1): _text(_ascii_upper),
    ("substring", 2): _text(_substring, int),
    ("substring", 3): _text(_substring, int, int),
    ("includes", 2): _includes,
    ("compareTo", 2): _compare_to,
    ("isGreaterThan", 2): lambda run, left, right: _compare_to(run, left, right) > 0,
    ("isLessThan", 2): lambda run, left, right: _compare_to(run, left, right) < 0,
    ("isInteger", 1): _is_integer,
    ("asInteger", 1): _as_integer,
    ("major", 1): _part(0),
    ("minor", 1): _part(1),
    ("patch", 1): _part(2),
    ("hasValue", 1): _has_value,
}
"""Functions by name and number of arguments, the value before the point included."""
