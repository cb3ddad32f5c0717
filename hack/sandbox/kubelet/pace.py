"""How long an emulated kubelet takes for what it does; all of it drawn from a seeded generator."""

from __future__ import annotations

from random import Random

import msgspec

Seconds = tuple[float, float]


class Pause(msgspec.Struct, frozen=True):
    """The pause between two checkpoints of an admission: a write and its fsync. A busy disk takes `slow` sometimes."""

    usual: Seconds = (0.001, 0.03)
    slow: Seconds = (0.1, 0.4)
    slow_percent: int = 2

    def draw(self, random: Random) -> float:
        """Seconds."""
        return random.uniform(*(self.slow if random.randrange(100) < self.slow_percent else self.usual))


class Startup(msgspec.Struct, frozen=True):
    """Seconds from the start of a kubelet until it knows its pods and what it may give out, and between the
    registrations of device plugins."""

    blind: Seconds = (0.0, 0.0)
    plugins: Seconds = (0.0, 0.0)


RESTART = Startup(blind=(1.0, 4.0), plugins=(0.2, 1.5))
"""As measured on machines with a slow disk (a restarted kubelet showed an empty node for four seconds)."""


class Pace(msgspec.Struct, frozen=True):
    """Seconds, each drawn evenly between two bounds: until a pod is looked at, from its admission until its containers
    run (init containers are done), and from its deletion until they have stopped.

    `reconcile` is the CPU manager's period of dropping the dead, `housekeeping` that of removing their directories.
    """

    admission: Seconds = (0.0, 0.0)
    start: Seconds = (0.0, 0.0)
    stop: Seconds = (0.0, 0.0)
    pause: Pause = Pause()
    startup: Startup = Startup()
    reconcile: float = 10.0
    housekeeping: float = 2.0
