"""Verdicts that still hold: a shape of pod is judged anew only on nodes that have changed since.

Invariant: a verdict is used only as long as the version of its row is the one it was made of.
"""

from __future__ import annotations

from weakref import ref

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import ENTRY_BYTES, Bounded
from topowise_scheduler.engine.batch_admission import checked
from topowise_scheduler.shape import PodRequests, Shape

# What is known of the zones on which a pod would lie. In between they are all that may be: the model knows better by
# ids of CPUs, and of devices it takes the lowest where a kubelet takes any.
NOT_LOOKED_FOR, BY_CPUS, ANY_DEVICES, EXACT = range(4)

_MAX_SHAPES = 1024
# For so many rows some fifty shapes of pods of one container.
_BYTES_PER_ROW = 1 << 11
_MIN_BYTES, _MAX_BYTES = 8 << 20, 32 << 20


class CachedVerdicts:
    """The verdicts on one pod, by row; `versions` are those of the rows they were made of, 0 for none.

    `zones` and `aligned` (containers, rows) are those of batch_admission.Placements, `located` (rows,) is one of
    NOT_LOOKED_FOR to EXACT.
    `short` is a number of `resources`: what the predicates check of any of its shapes, that of the first shape first.
    `kinds` has per group of nodes the version of each kind of hardware, and whether its nodes fit with nothing held.
    `prepared` is the engine's version when it was judged in steps, `rounds` how often in a row it
    was, `counted` what the cache has counted of its size.
    `asked_by` is who asked last.
    `raw`, `ranks` and `in_cache` (rows,) are what a strategy has said where `rated` (rows,); of one strategy, as a
    service has one.
    """

    def __init__(self, pod: PodRequests, shapes: tuple[Shape, ...], rows: int) -> None:
        self.resources = tuple(dict.fromkeys([name for shape in shapes for name in checked(shape)]))
        self.versions: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self.outcome: NDArray[np.int8] = np.zeros(rows, dtype=np.int8)
        self.reason: NDArray[np.int8] = np.zeros(rows, dtype=np.int8)
        self.short: NDArray[np.int16] = np.full(rows, -1, dtype=np.int16)
        containers = len(shapes[0].containers)
        self.zones: NDArray[np.int64] = np.zeros((containers, rows), dtype=np.int64)
        self.aligned: NDArray[np.bool_] = np.zeros((containers, rows), dtype=np.bool_)
        self.located: NDArray[np.int8] = np.zeros(rows, dtype=np.int8)
        self.kinds: dict[int, tuple[NDArray[np.int64], NDArray[np.int8]]] = {}
        self.prepared = -1 << 31
        self.rounds = 0
        self.counted = 0
        self.asked_by = ref(pod)
        self._shapes = pod.size * len(shapes)
        self.raw: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self.ranks: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self.in_cache: NDArray[np.int8] = np.zeros(rows, dtype=np.int8)
        self.rated: NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
        self._strategy: object = None

    @property
    def size(self) -> int:
        """Bytes, about."""
        verdicts = self.versions.nbytes + self.outcome.nbytes + self.reason.nbytes + self.short.nbytes
        kinds = sum([versions.nbytes + fits.nbytes for versions, fits in self.kinds.values()])
        ratings = self.raw.nbytes + self.ranks.nbytes + self.in_cache.nbytes + self.rated.nbytes
        located = self.zones.nbytes + self.aligned.nbytes + self.located.nbytes
        return verdicts + located + ratings + kinds + self._shapes

    def be_rated_by(self, strategy: object) -> None:
        """From now on ratings are of this strategy; those of another are forgotten."""
        if self._strategy != strategy:
            self._strategy = strategy
            self.rated[:] = False

    def numbers(self, shape: Shape) -> NDArray[np.int16]:
        """From numbers in `checked(shape)` to those in `resources`; -1 stays -1."""
        return np.array([*map(self.resources.index, checked(shape)), -1], dtype=np.int16)

    def widen(self, rows: int) -> None:
        """Make space for more rows."""
        missing = rows - len(self.versions)
        self.versions = np.pad(self.versions, (0, missing))
        self.outcome = np.pad(self.outcome, (0, missing))
        self.reason = np.pad(self.reason, (0, missing))
        self.short = np.pad(self.short, (0, missing), constant_values=-1)
        self.zones = np.pad(self.zones, ((0, 0), (0, missing)))
        self.aligned = np.pad(self.aligned, ((0, 0), (0, missing)))
        self.located = np.pad(self.located, (0, missing))
        self.raw = np.pad(self.raw, (0, missing))
        self.ranks = np.pad(self.ranks, (0, missing))
        self.in_cache = np.pad(self.in_cache, (0, missing))
        self.rated = np.pad(self.rated, (0, missing))

    def of_kinds(self, group: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """Versions and verdicts of the kinds of hardware in a group."""
        versions, verdicts = self.kinds.get(group, (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int8)))
        missing = count - len(versions)
        if missing > 0:
            # np.pad takes ten times as long.
            versions = np.concatenate([versions, np.zeros(missing, dtype=np.int64)])
            verdicts = np.concatenate([verdicts, np.zeros(missing, dtype=np.int8)])
            self.kinds[group] = versions, verdicts
        return versions, verdicts


class VerdictCache:
    """The shapes asked for last, at most 1,024 of them and 8 to 32 MiB by the number of rows; those of which there is a
    pod, or was lately."""

    def __init__(self) -> None:
        self._shapes: Bounded[tuple[Shape, ...], CachedVerdicts]
        self._shapes = Bounded(_MAX_BYTES, lambda _, verdicts: verdicts.counted, _MAX_SHAPES)

    def __len__(self) -> int:
        return len(self._shapes)

    def of(self, pod: PodRequests, rows: int) -> CachedVerdicts:
        """What is known of a pod, as kubelets with different feature gates see it; new if nothing is."""
        shapes = tuple([form.shape for form in pod.forms])
        found = self._shapes.get(shapes)
        if found is None:
            found = CachedVerdicts(pod, shapes, rows)
        else:
            found.asked_by = ref(pod)
            if len(found.versions) < rows:
                found.widen(rows)
        # What is known of kinds of hardware grows too.
        size = found.size
        if size != found.counted:
            found.counted = size
            # A pod that is judged in steps needs its verdicts at the next step, however large they are.
            most = min(_MAX_BYTES, max(_MIN_BYTES, rows * _BYTES_PER_ROW))
            self._shapes.most_bytes = max(most, size + ENTRY_BYTES)
            self._shapes.put(shapes, found)
        return found

    def forget_gone(self) -> None:
        """Drop what is known of pods that are gone: a tenant's thousand shapes are not to stay when the tenant goes."""
        for shapes in [shapes for shapes, known in self._shapes.items() if known.asked_by() is None]:
            self._shapes.pop(shapes)
