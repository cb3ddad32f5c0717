"""Which devices match the selectors of a class or of a request, each evaluated once. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from topowise.bounded import Bounded
from topowise_scheduler.options.claims.cel import values
from topowise_scheduler.options.claims.cel.expressions import Expression, Input, input_of
from topowise_scheduler.options.claims.inventory import PoolDevice
from topowise_scheduler.options.claims.work import EvaluationError, NotModelledError, Work

# What a character of a compiled expression takes at most, and the variables of a device with 32 attributes and
# capacities; both are measured.
_CHARACTER_BYTES: Final = 300
_INPUT_BYTES: Final = 3_000
# Characters of an expression that take as long to compile as a unit of work.
_COMPILED: Final = 4


class Match(IntEnum):
    """The result of an expression for a device: `FAILS` in kube-scheduler, too."""

    NOT_EVALUATED = 0
    NO = 1
    YES = 2
    FAILS = 3
    UNKNOWN = 4


class Selectors:
    """Compiled expressions and their results by slice. Together bounded by `most_bytes`. Not thread-safe."""

    def __init__(self, most_bytes: int = 32 << 20) -> None:
        self._expressions: Bounded[tuple[str, bool], Expression | str] = Bounded(most_bytes // 4, _expression_size)
        self._inputs: Bounded[tuple[int, int], Input] = Bounded(most_bytes // 4, lambda _key, _value: _INPUT_BYTES)
        self._results: Bounded[tuple[int, str, bool], bytearray] = Bounded(most_bytes // 2, _results_size)

    @property
    def bytes(self) -> int:
        """What is kept, in bytes."""
        return self._expressions.bytes + self._inputs.bytes + self._results.bytes

    def match(self, text: str, item: PoolDevice, knows_shares: bool, work: Work) -> Match:
        """Returns whether a device matches an expression. `knows_shares`: kube-scheduler's gate DRAConsumableCapacity
        gives expressions the field `allowMultipleAllocations`. Raises SpentError if the `work` is spent."""
        key = (item.stored.serial, text, knows_shares)
        results = self._results.get(key)
        if results is None:
            results = bytearray(len(item.stored.slice.spec.devices or ()))
            self._results.put(key, results)
        result = Match(results[item.index])
        if result is Match.NOT_EVALUATED:
            result = self._evaluated(text, item, knows_shares, work)[0]
            results[item.index] = result
        return result

    def reason(self, text: str, item: PoolDevice, knows_shares: bool, work: Work) -> str:
        """Returns why an expression fails for a device, or why its result is unknown. Raises SpentError."""
        return self._evaluated(text, item, knows_shares, work)[1]

    def _evaluated(self, text: str, item: PoolDevice, knows_shares: bool, work: Work) -> tuple[Match, str]:
        # No evaluation begins once the work is spent.
        work.spend(0)
        expression = self._expressions.get((text, knows_shares))
        if expression is None:
            work.left -= len(text) // _COMPILED
            expression = _compiled(text, knows_shares)
            self._expressions.put((text, knows_shares), expression)
        if isinstance(expression, str):
            return Match.UNKNOWN, expression
        device = self._inputs.once((item.stored.serial, item.index), lambda: input_of(item.id.driver, item.device))
        run = values.Run()
        try:
            return (Match.YES if expression.matches(device, run) else Match.NO), ""
        except EvaluationError as error:
            return Match.FAILS, str(error)
        except NotModelledError as error:
            return Match.UNKNOWN, str(error)
        finally:
            work.left -= values.MOST_UNITS - max(run.left, 0)


def _compiled(text: str, knows_shares: bool) -> Expression | str:
    try:
        return Expression(text, knows_shares)
    except NotModelledError as error:
        return str(error)


def _expression_size(key: tuple[str, bool], _: Expression | str) -> int:
    return _CHARACTER_BYTES * len(key[0])


def _results_size(key: tuple[int, str, bool], results: bytearray) -> int:
    # The text is the API object's or its copy; a slice's results share it with the expression.
    return len(results) + 200
