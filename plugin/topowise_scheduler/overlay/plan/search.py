"""The smallest change after which all pods fit, by a bounded search over allowed changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

import msgspec

from topowise_scheduler.overlay.plan import scenario as scenarios
from topowise_scheduler.overlay.plan.filling import Control, go_on
from topowise_scheduler.overlay.plan.values import TODAY, Change, PlanError, Result, Scenario

MOST_TRIES: Final = 40
MOST_COMBINED: Final = 3
_EMPTY: Final = Change()


class Found(msgspec.Struct, frozen=True):
    """`result` is None if no allowed change makes all pods fit. `tries`: scenarios that were decided. `is_least`: every
    smaller change was tried."""

    result: Result | None
    tries: int
    is_least: bool


def smallest(
    scenario: Scenario,
    allowed: Sequence[Change],
    *,
    longest_wait: float | None = None,
    most_tries: int = MOST_TRIES,
    control: Control = go_on,
) -> Found:
    """Returns the change with the fewest parts, of these the change that adds the fewest nodes, after which all pods
    fit; with `longest_wait`, no pod of the trace may wait longer (seconds)."""
    tries = 0
    for change in _in_order(allowed):
        if tries >= most_tries:
            return Found(None, tries, is_least=False)
        tries += 1
        result = scenarios.decide(msgspec.structs.replace(scenario, change=change), control)
        if not result.is_complete:
            return Found(None, tries, is_least=False)
        if result.fits and (longest_wait is None or result.waits is None or result.waits.longest <= longest_wait):
            return Found(result, tries, is_least=True)
    return Found(None, tries, is_least=True)


def _in_order(allowed: Sequence[Change]) -> Iterator[Change]:
    """Yields no change, then each change by the number of added nodes, then combinations of two and three changes."""
    yield TODAY
    for size in range(1, MOST_COMBINED + 1):
        combined = []
        for parts in combinations(allowed, size):
            change = merged(parts)
            if change is not None:
                combined.append(change)
        yield from sorted(combined, key=lambda change: sum(change.add.values()))


def merged(parts: Sequence[Change]) -> Change | None:
    """Returns the changes as one change, None if they contradict each other."""
    fields: dict[str, object] = {}
    for change in parts:
        for field in Change.__struct_fields__:
            value = getattr(change, field)
            if field == "name" or value == getattr(_EMPTY, field):
                continue
            before = fields.get(field)
            if isinstance(before, Mapping) and isinstance(value, Mapping):
                if before.keys() & value.keys():
                    return None
                value = {**before, **value}
            elif before is not None and before != value:
                return None
            fields[field] = value
    try:
        return Change(name=" + ".join(change.name for change in parts), **fields)  # type: ignore[arg-type]
    except PlanError:
        return None
