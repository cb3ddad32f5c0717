"""What a daemon says of a fault: a line a change, not a line a second."""

from __future__ import annotations

import re
from collections import Counter

from daemons import Daemon

# klog's head: severity, date, time, process, place.
_HEAD = re.compile(r"^[IWEF]\d{4} \S+ +\d+ \S+\] ")
# What differs between two lines that say the same.
_VARIES = re.compile(r"\b\d+(\.\d+)?\b")


def said(daemon: Daemon, since: int = 0) -> Counter[str]:
    """Lines after the first `since` without their heads and numbers, by how often they came."""
    lines = daemon.log.splitlines()[since:]
    return Counter(_VARIES.sub("#", _HEAD.sub("", line)) for line in lines if line)


def assert_said_once(daemon: Daemon, since: int = 0, *, at_most: int = 1, total: int = 20) -> Counter[str]:
    """No line came more often than `at_most` times, there are no tracebacks, and few lines in all."""
    counted = said(daemon, since)
    shown = "\n".join(f"{times} times: {text}" for text, times in counted.most_common())
    assert "Traceback" not in daemon.log, shown
    assert max(counted.values(), default=0) <= at_most, shown
    assert sum(counted.values()) <= total, shown
    return counted
