"""Kubernetes quantities as exact integers.

A quantity ("500m", "1k", "2Gi", "1e3", "0.5") is a decimal number; the API server writes it back in a canonical form,
so two spellings of one number must compare equal. Nothing here is a float: `MilliValue` and `Value` of apimachinery
round *up*, and a bound that is off by one ULP admits a pod the kubelet refuses.
Grammar: k8s.io/apimachinery/pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from functools import lru_cache

from topowise.errors import ParseError

_GRAMMAR = re.compile(
    r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:(Ki|Mi|Gi|Ti|Pi|Ei)|(n|u|m|k|M|G|T|P|E)|[eE]([+-]?\d{1,3}))?", re.ASCII
)
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

# No amount has a hundred digits, and what is read is remembered.
_MAX_TEXT = 100

INT64_MAX = (1 << 63) - 1


@lru_cache(maxsize=16384)
def _ratio(text: str) -> tuple[int, int]:
    """(numerator, denominator), the denominator a positive power of ten."""
    match = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise ParseError("quantity", text, 'a number with an optional suffix, such as "500m", "1k" or "2Gi"')
    sign, digits, binary, decimal, exponent = match.groups()
    whole, _, fraction = digits.partition(".")
    numerator = int(whole + fraction or "0")
    power = -len(fraction)
    if binary:
        numerator <<= 10 * _BINARY[binary]
    elif decimal:
        power += _DECIMAL[decimal]
    elif exponent:
        power += int(exponent)
    if sign == "-":
        numerator = -numerator
    return (numerator * 10**power, 1) if power >= 0 else (numerator, 10**-power)


def _scaled_up(quantity: str | int, factor: int) -> int:
    if not isinstance(quantity, str):
        if isinstance(quantity, bool) or not isinstance(quantity, int):
            raise ParseError("quantity", repr(quantity), "a string or an integer")
        return quantity * factor
    if len(quantity) <= _MAX_TEXT and quantity.isascii() and quantity.isdigit():
        # Most amounts of a report, and no two of them alike.
        return int(quantity) * factor
    numerator, denominator = _ratio(quantity)
    # apimachinery rounds away from zero here: ScaledValue of 1n in milli is 1, of -1n is -1.
    product = numerator * factor
    return -(-product // denominator) if product >= 0 else product // denominator


def value(quantity: str | int) -> int:
    """The quantity as an integer, fractions rounded away from zero (`Quantity.Value`). Raises ParseError."""
    return _scaled_up(quantity, 1)


def milli_value(quantity: str | int) -> int:
    """The quantity in thousandths, rounded away from zero (`Quantity.MilliValue`). Raises ParseError."""
    return _scaled_up(quantity, 1000)


def whole(quantity: str | int) -> int | None:
    """The quantity if it is an integer, else None (`Quantity.AsInt64`; a value past int64 is None as well)."""
    if not isinstance(quantity, str):
        return value(quantity)
    numerator, denominator = _ratio(quantity)
    number, rest = divmod(numerator, denominator)
    return number if rest == 0 and -INT64_MAX - 1 <= number <= INT64_MAX else None


def same(a: str | int, b: str | int) -> bool:
    """Whether two spellings are one number, whatever the suffix ("1000" and "1k")."""
    if a == b:
        return True
    (an, ad), (bn, bd) = _ratio(str(a)), _ratio(str(b))
    return an * bd == bn * ad


def for_resource(resource: str, quantity: str | int) -> int:
    """The canonical integer of a resource: milli-CPU for `cpu`, units (bytes, devices) for all others."""
    return milli_value(quantity) if resource == "cpu" else value(quantity)


def from_milli(milli: int) -> str:
    """The canonical spelling of a milli-CPU amount: 1500 -> "1500m", 2000 -> "2"."""
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def spell(resource: str, amount: int) -> str:
    """The inverse of `for_resource`."""
    return from_milli(amount) if resource == "cpu" else str(amount)


def human_bytes(amount: int) -> str:
    """Bytes for people, in the largest binary unit that keeps three digits: 1536 MiB -> "1.5Gi"."""
    number = float(amount)
    for unit in ("", "Ki", "Mi", "Gi", "Ti", "Pi"):
        if abs(number) < 1024 or unit == "Pi":
            return (
                f"{number:.0f}{unit}" if unit == "" or number >= 100 or number == int(number) else f"{number:.1f}{unit}"
            )
        number /= 1024
    raise AssertionError("unreachable: the last unit takes every number")
