"""Which devices match the selectors of a class or of a request, each evaluated once. Pure."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from topowise.bounded import Bounded
from topowise_scheduler.claims.errors import EvaluationError, NotModelledError
from topowise_scheduler.claims.inventory import PoolDevice

if TYPE_CHECKING:
    from topowise_scheduler.claims.expressions import Expression, Input

# What a compiled expression takes beside its text, and the variables of a device; both are measured.
_EXPRESSION_BYTES: Final = 10_000
_INPUT_BYTES: Final = 2_500


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

    def match(self, text: str, item: PoolDevice, knows_shares: bool) -> Match:
        """Returns whether a device matches an expression. `knows_shares`: kube-scheduler's gate DRAConsumableCapacity
        gives expressions the field `allowMultipleAllocations`."""
        key = (item.stored.serial, text, knows_shares)
        results = self._results.get(key)
        if results is None:
            results = bytearray(len(item.stored.slice.spec.devices or ()))
            self._results.put(key, results)
        result = Match(results[item.index])
        if result is Match.NOT_EVALUATED:
            result = self._evaluated(text, item, knows_shares)[0]
            results[item.index] = result
        return result

    def reason(self, text: str, item: PoolDevice, knows_shares: bool) -> str:
        """Returns why an expression fails for a device, or why its result is unknown."""
        return self._evaluated(text, item, knows_shares)[1]

    def _evaluated(self, text: str, item: PoolDevice, knows_shares: bool) -> tuple[Match, str]:
        # Imported here: the library takes about 16 MiB, which only services that predict claims need.
        from topowise_scheduler.claims import expressions

        expression = self._expressions.once((text, knows_shares), lambda: _compiled(text, knows_shares))
        if isinstance(expression, str):
            return Match.UNKNOWN, expression
        key = (item.stored.serial, item.index)
        device = self._inputs.once(key, lambda: expressions.input_of(item.id.driver, item.device))
        try:
            return (Match.YES if expression.matches(device) else Match.NO), ""
        except EvaluationError as error:
            return Match.FAILS, str(error)
        except NotModelledError as error:
            return Match.UNKNOWN, str(error)


def _compiled(text: str, knows_shares: bool) -> Expression | str:
    from topowise_scheduler.claims import expressions

    try:
        return expressions.Expression(text, knows_shares)
    except NotModelledError as error:
        return str(error)


def _expression_size(key: tuple[str, bool], _: Expression | str) -> int:
    return 20 * len(key[0]) + _EXPRESSION_BYTES


def _results_size(key: tuple[int, str, bool], results: bytearray) -> int:
    # The text is the API object's or its copy; a slice's results share it with the expression.
    return len(results) + 200
