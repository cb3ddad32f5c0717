"""One cluster filled by one scheduler with a mix's pods: until none gets in any more, or with the same for all."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from bench.density.cluster import Cluster
from bench.density.schedulers import Scheduler
from bench.results import Filled, Offered
from topowise.pods import Needs


class Stream:
    """Pods in random order, the same for all who have seen no pod refused. A shape may be left out from then on."""

    def __init__(self, counts: Sequence[int], seed: int) -> None:
        self._rng = Random(seed)
        self._counts = list(counts)
        self._shapes = list(range(len(counts)))

    def next(self) -> int:
        """The number of a shape."""
        return self._rng.choices(self._shapes, self._counts)[0]

    def only(self, shapes: set[int]) -> None:
        """From now on no others."""
        chosen = sorted(shapes)
        self._counts = [self._counts[self._shapes.index(shape)] for shape in chosen]
        self._shapes = chosen


def fill(
    cluster: Cluster, scheduler: Scheduler, needs: Sequence[Needs], counts: Sequence[int], seed: int, device: str
) -> Filled:
    """Until no shape gets in."""
    stream, ties = Stream(counts, seed), Random(seed)
    first: int | None = None
    running = refused = zones = aligned = 0
    living = set(range(len(needs)))
    # By shape, the nodes that have refused it since a pod was admitted last; a shape with no other node is stuck.
    refusals: dict[int, set[int]] = {}
    stuck: set[int] = set()
    while living - stuck:
        shape = stream.next()
        if shape in stuck:
            continue
        best = scheduler.best(cluster, needs[shape])
        if not best:
            # What fits nowhere now does so never again: nothing leaves.
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


def offer(
    cluster: Cluster, scheduler: Scheduler, needs: Sequence[Needs], shapes: Sequence[int], seed: int, device: str
) -> Offered:
    """Each of these pods once. What finds no place, or is refused, does not come again."""
    ties, placed = Random(seed), 0
    for shape in shapes:
        best = scheduler.best(cluster, needs[shape])
        placed += bool(best) and cluster.send(needs[shape], ties.choice(best)).admitted
    return Offered(placed, round(cluster.share("cpu"), 4), round(cluster.share(device), 4))
