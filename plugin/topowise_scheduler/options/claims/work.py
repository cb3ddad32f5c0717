"""How much a search may compute, and how it ends without a result. Pure."""

from __future__ import annotations

from typing import Final


class NotModelledError(Exception):
    """The result is not known; the text names the feature."""


class RefusedError(Exception):
    """The claims cannot be allocated; the text says why."""


class EvaluationError(Exception):
    """A CEL expression fails in kube-scheduler, too; the text says why."""


SEARCH_STEP: Final = 10
"""The units of a device that a search looks at. A unit is that of a CEL expression, about 0.4 us."""
MOST_UNITS: Final = 50_000
"""The units of a call, about 20 ms."""


class SpentError(NotModelledError):
    """The units are spent."""


class Work:
    """The units that are `left`."""

    __slots__ = ("left",)

    def __init__(self, units: int = MOST_UNITS) -> None:
        self.left = units

    def spend(self, units: int) -> None:
        """Takes units. Raises SpentError if not as many were left."""
        self.left -= units
        if self.left < 0:
            raise SpentError("a long search, or selectors that take long")
