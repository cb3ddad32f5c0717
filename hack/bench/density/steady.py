"""A cluster in steady state: pods come and go for a long time, and what finds no place waits.

A pod comes every tick and runs for a random time that its size has nothing to do with; on average so many are wanted
at once as LOAD of the upper bound of what can run (bound.py). Who waits is tried again whenever a pod has ended, the
longest waiting first, and others may overtake, as in kube-scheduler's queue. So nothing is lost, and
fragmentation costs time: most of all the large pods', which need what small ones break.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from heapq import heappop, heappush
from random import Random
from typing import Final, NamedTuple

from bench.density.cluster import Cluster
from bench.density.filling import Stream
from bench.density.moving import SHARE, Planner, PlannerOf
from bench.density.schedulers import Scheduler
from bench.results import Steady
from topowise.pods import Needs

# With more, the fluctuation of so few machines keeps a queue that nobody works off.
LOAD: Final = 0.8
# In mean running times of a pod: at first the cluster fills and is broken by pods that end, then it is measured.
SETTLED: Final = 2
MEASURED: Final = 3
# Of the pods, those with the most CPUs.
_LARGE: Final = 0.1
# Ticks until it is looked again whether moves make room for one that waits.
_PAUSE: Final = 5


class Arrival(NamedTuple):
    """`ticks` is how long it runs."""

    at: int
    shape: int
    ticks: int


def arrivals(counts: Sequence[int], seed: int, bound: int) -> tuple[list[Arrival], int]:
    """The same for all schedulers, and the mean running time in ticks. As many as are wanted at once come at the start:
    the exponential distribution that running times have does not know how old a pod is."""
    mean = max(1, round(LOAD * bound))
    # Another seed than the stream's, of which it would be a function.
    stream, rng = Stream(counts, seed), Random(f"running times {seed}")
    return [
        Arrival(max(0, number - mean), stream.next(), 1 + int(rng.expovariate(1 / mean)))
        for number in range((1 + SETTLED + MEASURED) * mean)
    ], mean


def large(needs: Sequence[Needs], counts: Sequence[int]) -> set[int]:
    """The shapes with the most CPUs that make a tenth of the pods together, or a little more."""
    found: set[int] = set()
    for shape in sorted(range(len(needs)), key=lambda one: needs[one].requests["cpu"], reverse=True):
        if sum(counts[one] for one in found) >= _LARGE * sum(counts):
            break
        found.add(shape)
    return found


class Churn:
    """One cluster and the scheduler that puts pods on it."""

    def __init__(
        self,
        cluster: Cluster,
        scheduler: Scheduler,
        needs: Sequence[Needs],
        seed: int,
        planner: Planner | None = None,
        movable_for: Set[int] = frozenset(),
    ) -> None:
        self._cluster, self._scheduler, self._needs = cluster, scheduler, needs
        # For pods of these shapes others are moved.
        self._planner, self._movable_for = planner, movable_for
        self._not_before = 0
        self.placed = self.moved = 0
        self._ties = Random(seed)
        self._ends: list[tuple[int, int]] = []
        self._waiting: dict[int, Arrival] = {}
        # Shapes that find no place before a pod ends.
        self._stuck: set[int] = set()
        self.refused = 0
        self.waited: dict[int, int] = {}

    def come(self, number: int, arrival: Arrival) -> None:
        """It is placed at once, or waits."""
        if not self._placed(number, arrival, arrival.at) and not self._placed_by_moves(number, arrival, arrival.at):
            self._waiting[number] = arrival

    def end(self, now: int) -> None:
        """What has run its time makes place for those who wait."""
        if not self._ends or self._ends[0][0] > now:
            return
        while self._ends and self._ends[0][0] <= now:
            uid = str(heappop(self._ends)[1])
            self._cluster.remove(uid)
            if self._planner is not None:
                self._planner.drop(uid)
        self._stuck.clear()
        for number, arrival in list(self._waiting.items()):
            if self._placed(number, arrival, now) or (
                now >= self._not_before and self._placed_by_moves(number, arrival, now)
            ):
                del self._waiting[number]

    def stop(self, now: int) -> None:
        """Who waits still has waited until now at least."""
        self.waited |= {number: now - arrival.at for number, arrival in self._waiting.items()}

    def _placed(self, number: int, arrival: Arrival, now: int) -> bool:
        if arrival.shape in self._stuck:
            return False
        needs = self._needs[arrival.shape]
        best = self._scheduler.best(self._cluster, needs)
        if not best:
            self._stuck.add(arrival.shape)
            return False
        node = self._ties.choice(best)
        if not self._cluster.send(needs, node, str(number)).admitted:
            self.refused += 1
            return False
        heappush(self._ends, (now + arrival.ticks, number))
        self.waited[number] = now - arrival.at
        self.placed += 1
        if self._planner is not None:
            self._planner.put(str(number), arrival.shape, node)
        return True

    def _placed_by_moves(self, number: int, arrival: Arrival, now: int) -> bool:
        """Whether the pod is placed once others have been moved; those that wait are not looked at at every tick."""
        allowed = int(SHARE * self.placed) - self.moved
        if self._planner is None or arrival.shape not in self._movable_for or allowed < 1:
            return False
        self._not_before = now + _PAUSE
        moves = self._planner.moves(arrival.shape, allowed)
        for uid, shape, node in moves:
            self._cluster.remove(uid)
            self._planner.drop(uid)
            self.moved += 1
            assert self._cluster.send(self._needs[shape], node, uid).admitted, f"{uid} was refused on {node}"
            self._planner.put(uid, shape, node)
        self._stuck.discard(arrival.shape)
        return bool(moves) and self._placed(number, arrival, now)


def keep_busy(
    cluster: Cluster,
    scheduler: Scheduler,
    needs: Sequence[Needs],
    counts: Sequence[int],
    seed: int,
    bound: int,
    device: str,
    planner: PlannerOf | None = None,
) -> Steady:
    """What became of the pods that came once the cluster had settled. With a planner pods are moved for large ones."""
    listed, mean = arrivals(counts, seed, bound)
    since, big = SETTLED * mean, large(needs, counts)
    planned = None if planner is None else planner(cluster.kubelets)
    churn, cpus, devices = Churn(cluster, scheduler, needs, seed, planned, big), 0.0, 0.0
    for number, arrival in enumerate(listed):
        churn.end(arrival.at)
        churn.come(number, arrival)
        if arrival.at >= since:
            cpus += cluster.share("cpu")
            devices += cluster.share(device)
    churn.stop(listed[-1].at)
    measured = [number for number, arrival in enumerate(listed) if arrival.at >= since]
    of_large = [churn.waited[number] for number in measured if listed[number].shape in big]
    of_all = [churn.waited[number] for number in measured]
    return Steady(
        at_once=round(_at_once(of_all), 4),
        large_at_once=round(_at_once(of_large), 4),
        wait=round(sum(of_all) / len(of_all) / mean, 4),
        large_wait=round(sum(of_large) / len(of_large) / mean, 4),
        refused=churn.refused,
        cpus=round(cpus / len(measured), 4),
        devices=round(devices / len(measured), 4),
        moved=round(churn.moved / churn.placed, 4),
    )


def _at_once(waited: Sequence[int]) -> float:
    return sum(not one for one in waited) / len(waited)
