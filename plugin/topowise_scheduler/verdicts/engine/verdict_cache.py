"""Cached verdicts by pod shape: only changed nodes are decided again.

Invariant: a verdict is used only while the version of its row equals the version that it was computed from.
"""

from __future__ import annotations

from weakref import ref

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import ENTRY_BYTES, Bounded
from topowise_scheduler.report.shape import PodRequests, Shape

# What the zones of a placement are: not computed; an upper bound, where the model decides by ids of CPUs; an upper
# bound, where a kubelet takes any device (the model takes the lowest id); exact.
NOT_COMPUTED, BY_CPUS, ANY_DEVICES, EXACT = range(4)

_MAX_SHAPES = 1024
# Enough for about fifty shapes of pods with a single container.
_BYTES_PER_ROW = 1 << 11
# Arrays of CachedVerdicts whose last axis is the rows.
_BY_ROW = ("versions", "outcome", "reason", "zones", "aligned", "located", "raw", "ranks", "in_cache", "rated")
_MIN_BYTES, _MAX_BYTES = 8 << 20, 32 << 20


class CachedVerdicts:
    """The verdicts on a pod by row. `versions` are the rows' versions that they were computed from, 0 for no verdict.

    `zones` and `aligned` (containers, rows) are as in batch_admission.Placements, `located` (rows,) is NOT_COMPUTED
    to EXACT. `kinds` has, by group of nodes, the version of each kind of hardware and whether the pod fits on such a
    node when it is empty. `prepared` is the engine's version after the last computation in steps, `rounds` the number
    of such computations in a row, `counted` the bytes that the cache has added for it. `last_pod` is the pod of the
    last call. `raw`, `ranks` and `in_cache` (rows,) are ratings where `rated` (rows,), all by the same strategy.
    """

    def __init__(self, pod: PodRequests, shapes: tuple[Shape, ...], rows: int) -> None:
        self.versions: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self.outcome: NDArray[np.int8] = np.zeros(rows, dtype=np.int8)
        self.reason: NDArray[np.int8] = np.zeros(rows, dtype=np.int8)
        containers = len(shapes[0].containers)
        self.zones: NDArray[np.int64] = np.zeros((containers, rows), dtype=np.int64)
        self.aligned: NDArray[np.bool_] = np.zeros((containers, rows), dtype=np.bool_)
        self.located: NDArray[np.int8] = np.zeros(rows, dtype=np.int8)
        self.kinds: dict[int, tuple[NDArray[np.int64], NDArray[np.int8]]] = {}
        self.prepared = -1 << 31
        self.rounds = 0
        self.counted = 0
        self.last_pod = ref(pod)
        self._shapes = pod.size * len(shapes)
        self.raw: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self.ranks: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self.in_cache: NDArray[np.int8] = np.zeros(rows, dtype=np.int8)
        self.rated: NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
        self._strategy: object = None

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        kinds = sum([versions.nbytes + fits.nbytes for versions, fits in self.kinds.values()])
        verdicts = self.versions.nbytes + self.outcome.nbytes + self.reason.nbytes
        ratings = self.raw.nbytes + self.ranks.nbytes + self.in_cache.nbytes + self.rated.nbytes
        located = self.zones.nbytes + self.aligned.nbytes + self.located.nbytes
        return verdicts + located + ratings + kinds + self._shapes

    def set_strategy(self, strategy: object) -> None:
        """Sets the strategy of the ratings; drops the ratings of a different strategy."""
        if self._strategy != strategy:
            self._strategy = strategy
            self.rated[:] = False

    def widen(self, rows: int) -> None:
        """Extends the arrays to a number of rows."""
        missing = rows - len(self.versions)
        for name in _BY_ROW:
            entries = getattr(self, name)
            setattr(self, name, np.pad(entries, [*[(0, 0)] * (entries.ndim - 1), (0, missing)]))

    def of_kinds(self, group: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """The versions and verdicts of the kinds of hardware in a group."""
        versions, verdicts = self.kinds.get(group, (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int8)))
        missing = count - len(versions)
        if missing > 0:
            # np.pad takes ten times as long.
            versions = np.concatenate([versions, np.zeros(missing, dtype=np.int64)])
            verdicts = np.concatenate([verdicts, np.zeros(missing, dtype=np.int8)])
            self.kinds[group] = versions, verdicts
        return versions, verdicts


class VerdictCache:
    """The most recently used shapes, at most 1,024 shapes and 8 to 32 MiB, depending on the number of rows."""

    def __init__(self) -> None:
        self._shapes: Bounded[tuple[Shape, ...], CachedVerdicts]
        self._shapes = Bounded(_MAX_BYTES, lambda _, verdicts: verdicts.counted, _MAX_SHAPES)

    def __len__(self) -> int:
        return len(self._shapes)

    def of(self, pod: PodRequests, rows: int) -> CachedVerdicts:
        """The verdicts on a pod, new and empty if there are none.

        The key has a shape for each way in which kubelets with different feature gates see the pod.
        """
        shapes = tuple([form.shape for form in pod.forms])
        cached = self._shapes.get(shapes)
        if cached is None:
            cached = CachedVerdicts(pod, shapes, rows)
        else:
            cached.last_pod = ref(pod)
            if len(cached.versions) < rows:
                cached.widen(rows)
        # The size changes between calls, because `kinds` grows.
        size = cached.size
        if size != cached.counted:
            cached.counted = size
            # A pod that is decided in steps needs its verdicts at the next step, even above the bound.
            most = min(_MAX_BYTES, max(_MIN_BYTES, rows * _BYTES_PER_ROW))
            self._shapes.most_bytes = max(most, size + ENTRY_BYTES)
            self._shapes.put(shapes, cached)
        return cached

    def forget_gone(self) -> None:
        """Drops the verdicts on deleted pods, so that a deleted tenant's thousand shapes free their memory."""
        for shapes in [shapes for shapes, cached in self._shapes.items() if cached.last_pod() is None]:
            self._shapes.pop(shapes)
