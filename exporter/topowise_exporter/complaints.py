"""Problems in the log: said once when they appear or change, and once when they are over.

One that changes to and fro between the same texts is said once for each of them, and one that comes and goes once in
a while, with its end.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from topowise.runtime.log import kv
from topowise.runtime.told import Told

log = logging.getLogger(__name__)


class Complaints:
    """`about` is a whole sentence that says what is wrong and what happens instead; `problem` is the detail."""

    def __init__(self) -> None:
        self._told: dict[str, Told] = {}

    def raise_(self, about: str, problem: str) -> None:
        """There is a problem."""
        if self._told.setdefault(about, Told()).is_news(problem):
            log.warning(about, extra=kv(why=problem))

    def settle(self, about: str) -> None:
        """The problem is over, if there was one."""
        if about in self and self._told[about].over():
            log.info("Recovered", extra=kv(problem=about))

    def note(self, about: str, problems: tuple[str, ...]) -> None:
        """The problems there are now, the first in full."""
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self.raise_(about, problems[0] + more)
        else:
            self.settle(about)

    def replace(self, group: str, problems: Mapping[str, str]) -> None:
        """The problems of a group: those in the mapping hold, the others of the group are over."""
        for about in [one for one in self._told if one.startswith(group) and one[len(group) :] not in problems]:
            self.settle(about)
        for about, problem in problems.items():
            self.raise_(group + about, problem)

    def __contains__(self, about: str) -> bool:
        return about in self._told and bool(self._told[about].last)
