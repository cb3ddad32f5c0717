"""Kubernetes quantities as exact integers.

A quantity ("500m", "1k", "2Gi", "1e3", "0.5") is a decimal number. The API server writes it in a canonical form, so two
forms of the same number must compare equal. Nothing here is a float: `MilliValue` and `Value` of apimachinery round
*up*, and a bound that is off by an ULP admits a pod that the kubelet refuses. Grammar:
k8s.io/apimachinery/pkg/api/resource/quantity.go.
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

# No amount has a hundred digits. The limit bounds the cache.
_MAX_TEXT = 100

INT64_MAX = (1 << 63) - 1


@lru_cache(maxsize=16384)
def _ratio(text: str) -> tuple[int, int]:
    """Returns (numerator, denominator); the denominator is a positive power of ten."""
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
        # Most amounts of a report are plain integers and all different, so they bypass the cache.
        return int(quantity) * factor
    numerator, denominator = _ratio(quantity)
    # apimachinery rounds away from zero here: ScaledValue of 1n in milli is 1, of -1n is -1.
    product = numerator * factor
    return -(-product // denominator) if product >= 0 else product // denominator


def value(quantity: str | int) -> int:
    """Returns the quantity as an integer, fractions rounded away from zero (`Quantity.Value`). Raises ParseError."""
    return _scaled_up(quantity, 1)


def milli_value(quantity: str | int) -> int:
    """Returns the quantity in thousandths, rounded away from zero (`Quantity.MilliValue`). Raises ParseError."""
    return _scaled_up(quantity, 1000)


def nano_value(quantity: str | int) -> int:
    """Returns the quantity in billionths, the finest fraction that a quantity keeps; finer parts are rounded away from
    zero. Raises ParseError."""
    return _scaled_up(quantity, 1_000_000_000)


def whole(quantity: str | int) -> int | None:
    """Returns the quantity if it is an integer, else None (`Quantity.AsInt64`; also None for a value past int64)."""
    if not isinstance(quantity, str):
        return value(quantity)
    numerator, denominator = _ratio(quantity)
    number, rest = divmod(numerator, denominator)
    return number if rest == 0 and -INT64_MAX - 1 <= number <= INT64_MAX else None


def for_resource(resource: str, quantity: str | int) -> int:
    """Returns the canonical integer of a resource: milli-CPU for `cpu`, else units (bytes, devices)."""
    return milli_value(quantity) if resource == "cpu" else value(quantity)


def from_milli(milli: int) -> str:
    """Returns the canonical text of a milli-CPU amount: 1500 -> "1500m", 2000 -> "2"."""
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def to_text(resource: str, amount: int) -> str:
    """Returns the inverse of `for_resource`."""
    return from_milli(amount) if resource == "cpu" else str(amount)


def human_bytes(amount: int) -> str:
    """Returns bytes for people, in the largest binary unit that keeps three digits: 1536 MiB -> "1.5Gi"."""
    number = float(amount)
    for unit in ("", "Ki", "Mi", "Gi", "Ti", "Pi"):
        if abs(number) < 1024 or unit == "Pi":
            return (
                f"{number:.0f}{unit}" if unit == "" or number >= 100 or number == int(number) else f"{number:.1f}{unit}"
            )
        number /= 1024
    raise AssertionError("unreachable: the last unit takes every number")
