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


_MATCHES: Final = tuple(Match)


class Selectors:
    """Compiled expressions and their results by slice. Together bounded by `most_bytes`. Not thread-safe."""

    def __init__(self, most_bytes: int = 32 << 20) -> None:
        self._expressions: Bounded[str, Expression | str] = Bounded(most_bytes // 4, _expression_size)
        self._inputs: Bounded[tuple[int, int], Input] = Bounded(most_bytes // 4, lambda _key, _value: _INPUT_BYTES)
        self._results: Bounded[tuple[int, str], bytearray] = Bounded(most_bytes // 2, _results_size)

    @property
    def bytes(self) -> int:
        """What is kept, in bytes."""
        return self._expressions.bytes + self._inputs.bytes + self._results.bytes

    def match(self, text: str, item: PoolDevice, work: Work) -> Match:
        """Returns whether a device matches an expression. Raises SpentError if the `work` is spent."""
        key = (item.stored.serial, text)
        results = self._results.get(key)
        if results is None:
            results = bytearray(len(item.stored.slice.spec.devices or ()))
            self._results.put(key, results)
        result = _MATCHES[results[item.index]]
        if result is Match.NOT_EVALUATED:
            result = self._evaluated(text, item, work)[0]
            results[item.index] = result
        return result

    def reason(self, text: str, item: PoolDevice, work: Work) -> str:
        """Returns why an expression fails for a device, or why its result is unknown. Raises SpentError."""
        return self._evaluated(text, item, work)[1]

    def _evaluated(self, text: str, item: PoolDevice, work: Work) -> tuple[Match, str]:
        # No evaluation begins once the work is spent.
        work.spend(0)
        expression = self._expressions.get(text)
        if expression is None:
            work.left -= len(text) // _COMPILED
            expression = _compiled(text)
            self._expressions.put(text, expression)
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


def _compiled(text: str) -> Expression | str:
    try:
        return Expression(text)
    except NotModelledError as error:
        return str(error)


def _expression_size(text: str, _: Expression | str) -> int:
    return _CHARACTER_BYTES * len(text)


def _results_size(key: tuple[int, str], results: bytearray) -> int:
    # The text is the API object's or its copy; a slice's results share it with the expression.
    return len(results) + 200
