"""Conditions in the log: a line when a condition appears or changes, and a line when it is over.

A condition that alternates between texts is logged once per text. A condition that appears again after a while is
logged again, with its end.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from topowise.runtime.log import kv
from topowise.runtime.log_once import OncePerChange

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
        """The problem, if any, is over."""
        if about in self and self._problems[about].over():
            log.info("Recovered", extra=kv(problem=about))

    def note(self, about: str, problems: tuple[str, ...]) -> None:
        """Set the condition with its problems, the first in full; without problems, clear it."""
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self.set(about, problems[0] + more)
        else:
            self.clear(about)

    def replace(self, group: str, problems: Mapping[str, str]) -> None:
        """Set the conditions of a group, and clear all conditions of the group that are not in the mapping."""
        for about in [key for key in self._problems if key.startswith(group) and key[len(group) :] not in problems]:
            self.clear(about)
        for about, problem in problems.items():
            self.set(group + about, problem)

    def __contains__(self, about: str) -> bool:
        return about in self._problems and bool(self._problems[about].last)
