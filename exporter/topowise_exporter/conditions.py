"""Conditions in the log: a line when a condition appears or changes, and a line when it is over.

A condition that alternates between texts is logged once per text. A condition that appears again after a while is
logged again, with its end.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Final

from topowise.runtime.log import OncePerChange, kv

log = logging.getLogger(__name__)


class Condition(Enum):
    """Everything that may be wrong, each with a sentence for the log: what is wrong, and what happens instead."""

    NO_KUBELET = "Cannot read the node, publishing nothing until it can be read"
    NO_WRITE = "Cannot publish, trying again"
    NO_PLACEMENT = "Cannot annotate pods with their placement, trying again; the node's own object is not affected"
    WILL_NOT_START = "The kubelet would not start again, as a state file does not match machine and configuration"
    NOT_TRUE_YET = "The kubelet does not know yet what it has, the last true object stays"
    NO_DEVICES_YET = "Device plug-ins have not registered since the kubelet started, publishing all but their devices"
    # What the publisher finds.
    NO_OWNER = "Cannot read the own Node, publishing with the owner that is known, if any"
    ODD_MACHINE = "Parts of /sys are missing or damaged"
    ODD_NUMBERS = "The kubelet's numbers do not add up"
    HIGH_NODES = "Leaving out NUMA nodes with ids beyond 63, at which kubelets that align panic and schedulers end"
    NO_NUMATOPOLOGY = "Cannot publish for Volcano, trying again"
    OTHER_WRITER = (
        "Somebody else writes the same object, ours is written once a minute at most: switch one of the two off"
    )
    LARGE = "The object is too large for the API server, leaving out what it can do without"
    TOPOLOGY_NOT_COMPARED = (
        "Cannot compare the NodeResourceTopology with what was written, trusting that nobody changed it"
    )
    NUMATOPOLOGY_NOT_COMPARED = "Cannot compare the Numatopology with what was written, trusting that nobody changed it"
    # Single sources of a reading.
    CONFIGURATION = "Source: A source of the kubelet's configuration cannot be read"
    ODD_MEMORY = "Source: The nodes' memory does not sum up to the machine's, publishing the nodes' own"
    NO_CLAIMS = "Source: List does not name devices of resource claims, leaving them out"
    ALLOCATED_STATE = "Source: Allocated pods state cannot be read, going by directories of pods"
    CPU_STATE = "Source: CPU manager state cannot be read, going by what it had last, if anything, and by List"
    MEMORY_STATE = "Source: Memory manager state cannot be read, going by what it had last, if anything, and by List"
    DEVICE_STATE = (
        "Source: Device manager checkpoint cannot be read, going by what it had last, if anything, and by List"
    )


OF_SOURCES: Final = (
    Condition.CONFIGURATION,
    Condition.ODD_MEMORY,
    Condition.NO_CLAIMS,
    Condition.ALLOCATED_STATE,
    Condition.CPU_STATE,
    Condition.MEMORY_STATE,
    Condition.DEVICE_STATE,
)


class Conditions:
    """Conditions with their problems; a problem is the detail of a condition."""

    def __init__(self) -> None:
        self._problems: dict[Condition, OncePerChange] = {}

    def set(self, condition: Condition, problem: str) -> None:
        """There is a problem."""
        if self._problems.setdefault(condition, OncePerChange()).is_change(problem):
            log.warning(condition.value, extra=kv(why=problem))

    def clear(self, condition: Condition) -> None:
        """The problem, if any, is over."""
        if condition in self and self._problems[condition].over():
            log.info("Recovered", extra=kv(problem=condition.value))

    def note(self, condition: Condition, problems: tuple[str, ...]) -> None:
        """Set the condition with its problems, the first in full; without problems, clear it."""
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            self.set(condition, problems[0] + more)
        else:
            self.clear(condition)

    def __contains__(self, condition: Condition) -> bool:
        return condition in self._problems and bool(self._problems[condition].last)
