"""Conditions that are set and cleared, in the log: said once when they appear or change, and once when they are over.

One that changes to and fro between the same texts is said once for each of them, and one that comes and goes once in
a while, with its end.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from topowise.runtime.log import kv
from topowise.runtime.once import OncePerChange

log = logging.getLogger(__name__)


class Conditions:
    """`about` is a whole sentence that says what is wrong and what happens instead; `problem` is the detail."""

    def __init__(self) -> None:
        self._problems: dict[str, OncePerChange] = {}

    def set(self, about: str, problem: str) -> None:
        """There is a problem."""
        if self._problems.setdefault(about, OncePerChange()).is_change(problem):
            log.warning(about, extra=kv(why=problem))

    def clear(self, about: str) -> None:
        """The problem is over, if there was one."""
        if about in self and self._problems[about].over():
            log.info("Recovered", extra=kv(problem=about))

    def note(self, about: str, problems: tuple[str, ...]) -> None:
        """The problems there are now, the first in full."""
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self.set(about, problems[0] + more)
        else:
            self.clear(about)

    def replace(self, group: str, problems: Mapping[str, str]) -> None:
        """The problems of a group: those in the mapping hold, the others of the group are over."""
        for about in [one for one in self._problems if one.startswith(group) and one[len(group) :] not in problems]:
            self.clear(about)
        for about, problem in problems.items():
            self.set(group + about, problem)

    def __contains__(self, about: str) -> bool:
        return about in self._problems and bool(self._problems[about].last)
