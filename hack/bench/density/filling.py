"""Fills a cluster with the pods of a mix until no further pod is admitted."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from bench.density.cluster import Cluster
from bench.density.schedulers import Scheduler
from bench.results import Filled
from topowise.pods import Needs


class Stream:
    """A random order of pods, equal for equal seeds until shapes are excluded."""

    def __init__(self, counts: Sequence[int], seed: int) -> None:
        self._rng = Random(seed)
        self._counts = list(counts)
        self._shapes = list(range(len(counts)))

    def next(self) -> int:
        """Returns the index of the next pod's shape."""
        return self._rng.choices(self._shapes, self._counts)[0]

    def only(self, shapes: set[int]) -> None:
        """Restricts the stream to `shapes` from now on."""
        chosen = sorted(shapes)
        self._counts = [self._counts[self._shapes.index(shape)] for shape in chosen]
        self._shapes = chosen


def fill(
    cluster: Cluster, scheduler: Scheduler, needs: Sequence[Needs], counts: Sequence[int], seed: int, device: str
) -> Filled:
    """Sends pods until no shape is admitted, and returns what runs then."""
    stream, ties = Stream(counts, seed), Random(seed)
    first: int | None = None
    running = refused = zones = aligned = 0
    living = set(range(len(needs)))
    # Nodes that have refused a shape since the last admission. A shape without any other node is stuck.
    refusals: dict[int, set[int]] = {}
    stuck: set[int] = set()
    while living - stuck:
        shape = stream.next()
        if shape in stuck:
            continue
        best = scheduler.best(cluster, needs[shape])
        if not best:
            # No pod ever ends, so a shape that fits nowhere now never fits again.
            first = running if first is None else first
            living.discard(shape)
            if living:
                stream.only(living)
            continue
        untried = [node for node in best if node not in refusals.get(shape, ())]
        if not untried:
            stuck.add(shape)
            continue
        node = ties.choice(untried)
        admission = cluster.send(needs[shape], node)
        if not admission.admitted:
            first = running if first is None else first
            refused += 1
            refusals.setdefault(shape, set()).add(node)
            continue
        running += 1
        refusals.clear()
        stuck.clear()
        count = cluster.zones_of(admission)
        zones += count
        aligned += count > 0
    return Filled(
        first=running if first is None else first,
        running=running,
        refused=refused,
        cpus=round(cluster.share("cpu"), 4),
        devices=round(cluster.share(device), 4),
        zones=round(zones / max(1, aligned), 3),
    )
