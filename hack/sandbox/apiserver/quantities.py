"""The canonical spelling the API server gives quantities of built-in kinds ("0.5" -> "500m", "1000" -> "1k").

A client that compares written with returned values meets this, so the sandbox does it too. Custom resources keep
their spelling. Source: k8s.io/apimachinery/pkg/api/resource/quantity.go, CanonicalizeBytes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

_GRAMMAR = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d{1,3})?")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_EXPONENT = {suffix: exponent for exponent, suffix in _DECIMAL.items()}


def canonical(value: str | int | float) -> str:
    """Returns the canonical spelling. Raises ValueError for what is no quantity."""
    text = str(value)
    match = _GRAMMAR.fullmatch(text)
    if match is None or isinstance(value, bool):
        raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    sign, digits, suffix = match.group(1), match.group(2), match.group(3) or ""
    number = Fraction(digits if digits[-1] != "." else digits[:-1])
    if suffix in _BINARY[1:]:
        return _binary(number * 1024 ** _BINARY.index(suffix), sign)
    if suffix in _EXPONENT:
        return _decimal(number * Fraction(10) ** _EXPONENT[suffix], sign, scientific=False)
    return _decimal(number * Fraction(10) ** int(suffix[1:]), sign, scientific=True)


def _binary(number: Fraction, sign: str) -> str:
    # Small and fractional amounts are shown in decimal, so that nothing is lost: 0.1Gi is 107374182400m.
    if number < 1024 or number.denominator != 1:
        return _decimal(number, sign, scientific=False)
    whole, power = number.numerator, 0
    while whole % 1024 == 0 and power < 6:
        whole, power = whole // 1024, power + 1
    return f"{'-' * (sign == '-')}{whole}{_BINARY[power]}"


def _decimal(number: Fraction, sign: str, *, scientific: bool) -> str:
    nanos = number * 10**9
    whole, power = -(-nanos.numerator // nanos.denominator), -9
    if whole == 0:
        return "0"
    while whole % 1000 == 0 and power < 18:
        whole, power = whole // 1000, power + 3
    suffix = _DECIMAL[power] if not scientific else (f"e{power}" if power else "")
    return f"{'-' * (sign == '-')}{whole}{suffix}"


def canonical_list(amounts: dict[str, Any]) -> dict[str, str]:
    """Returns a ResourceList with every amount in canonical spelling."""
    return {name: canonical(amount) for name, amount in amounts.items()}
