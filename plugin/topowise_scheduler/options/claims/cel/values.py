"""Values of CEL, and how they are compared and looked up. Pure.

A string, bool or list is Python's, an int is Python's within 64 bits, a map is a dict whose keys are strings.

Upstream: github.com/google/cel-go/common/types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from topowise import quantity
from topowise_scheduler.options.claims import semver
from topowise_scheduler.options.claims.work import EvaluationError, NotModelledError

MOST_UNITS: Final = 10_000
"""The most units of an evaluation, about 3 ms. A unit is a step of the evaluation, or some characters or elements that
it reads or makes: so a value has at most a few hundred kilobytes.

kube-scheduler ends an evaluation at a cost of 1,000,000. A unit has a cost of at most 100 there, so an evaluation that
ends here ends there as well.
"""
# Characters that a unit reads or makes.
_CHARACTERS: Final = 16


class Run:
    """An evaluation. `left` are the units that it may still take."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MOST_UNITS

    def spend(self, units: int) -> None:
        """Takes units. Raises NotModelledError if not as many are left."""
        self.left -= units
        if self.left < 0:
            raise NotModelledError(f"a CEL expression that takes more than {MOST_UNITS} steps")

    def read(self, text: str) -> None:
        """Takes the units of a text that is read or made."""
        self.spend(len(text) // _CHARACTERS)


class Quantity(NamedTuple):
    """A quantity in billionths."""

    nano: int


class Version(NamedTuple):
    """A semantic version."""

    version: semver.Version


class Optional(NamedTuple):
    """An optional value; () has none."""

    values: tuple[Any, ...] = ()


class Domains(dict[str, Mapping[str, Any]]):
    """A map of the variable `device` by domain: a look-up finds an empty map for a domain that is missing."""


_NOTHING: Final[Mapping[str, Any]] = {}


def no_overload() -> EvaluationError:
    """Returns the error of a function whose arguments have a type for which it is not defined."""
    return EvaluationError("no such overload")


def are_equal(run: Run, left: Any, right: Any) -> bool:
    """Returns whether left == right. Raises EvaluationError for a quantity or version on the left whose right is
    something else."""
    run.spend(1)
    kind = type(left)
    if kind is str:
        if type(right) is not str:
            return False
        run.read(left)
        return bool(left == right)
    if kind in (bool, int):
        return type(right) is kind and left == right
    if kind is Quantity or kind is Version:
        if type(right) is not kind:
            raise no_overload()
        if kind is Version:
            return semver.compare(left.version, right.version) == 0
        return bool(left.nano == right.nano)
    if kind is list:
        return type(right) is list and len(left) == len(right) and all(map(_Equal(run), left, right))
    if kind is Optional:
        if type(right) is not Optional or len(left.values) != len(right.values):
            return False
        return not left.values or are_equal(run, left.values[0], right.values[0])
    raise NotModelledError("a comparison of maps in a CEL expression")


class _Equal:
    """Compares elements: an element that cannot be compared counts as equal."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, left: Any, right: Any) -> bool:
        try:
            return are_equal(self._run, left, right)
        except EvaluationError:
            return True


def is_equal(run: Run, left: Any, right: Any) -> bool:
    """Returns whether left == right; values that cannot be compared are not equal."""
    try:
        return are_equal(run, left, right)
    except EvaluationError:
        return False


def compare(run: Run, left: Any, right: Any) -> int:
    """Returns -1, 0 or 1 for the order of two values. Raises EvaluationError for values without an order."""
    run.spend(1)
    if type(left) is str and type(right) is str:
        run.read(left)
        return (left > right) - (left < right)
    if type(left) is not type(right) or type(left) not in (bool, int):
        raise no_overload()
    return int(left > right) - int(left < right)


def found(value: Any, key: Any) -> tuple[bool, Any]:
    """Returns whether a map or list has a key or index, and its value. Another value has no keys. Raises
    EvaluationError for an index of a list that is no integer."""
    if isinstance(value, dict):
        if type(key) is str and key in value:
            return True, value[key]
        return (True, _NOTHING) if type(value) is Domains else (False, None)
    if type(value) is list:
        if type(key) is not int:
            raise EvaluationError("unsupported index of a list")
        return (True, value[key]) if 0 <= key < len(value) else (False, None)
    return False, None


def at(run: Run, value: Any, key: Any) -> Any:
    """Returns the value of a key or index. Raises EvaluationError."""
    run.spend(1)
    if type(value) is Optional:
        return at_optional(run, value, key)
    is_there, item = found(value, key)
    if not is_there:
        raise EvaluationError(f"no such key: {str(key)[:100]}")
    return item


def at_optional(run: Run, value: Any, key: Any) -> Optional:
    """Returns the optional value of a key or index."""
    run.spend(1)
    if type(value) is Optional:
        if not value.values:
            return value
        value = value.values[0]
    is_there, item = found(value, key)
    return Optional((item,) if is_there else ())


def contains(run: Run, item: Any, container: Any) -> bool:
    """Returns whether a list has an item, or a map a key (`item in container`)."""
    run.spend(1)
    if type(container) is list:
        return any(is_equal(run, item, element) for element in container)
    if isinstance(container, dict):
        return type(item) is str and item in container
    raise no_overload()


def is_in_set(run: Run, item: Any, items: Any) -> bool:
    """Returns whether a list of literals has an item. cel-go looks up its hash; a version has none, and panics."""
    if type(item) is Version:
        raise NotModelledError("a version in a list of literals in a CEL expression")
    return contains(run, item, items)


def integer(number: int) -> int:
    """Returns an int. Raises EvaluationError if it does not fit into 64 bits."""
    if not -quantity.INT64_MAX - 1 <= number <= quantity.INT64_MAX:
        raise EvaluationError("integer overflow")
    return number
