"""Verdicts, placements and scores of the engine for many nodes at once, for tests and benches.

The service reads verdicts and ratings only (`Engine.verdicts`, `Engine.rated`). Tests compare the placements too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.kubelet.trial import trial
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts.engine import Candidates, Engine, Outcome, Ratings
from topowise_scheduler.verdicts.engine.verdict_cache import EXACT, CachedVerdicts
from topowise_scheduler.verdicts.strategies import Rated, Rater, Strategy

Parts = Iterable[tuple[NDArray[np.intp], Candidates]]


class Judgement(NamedTuple):
    """In the order of `rows` (nodes,): `outcome`, `reason` (an index of Engine.reasons), and for each container
    `zones` and `aligned` (containers, nodes), which are exact where the pod fits and the model was not needed."""

    rows: NDArray[np.int32]
    outcome: NDArray[np.int8]
    reason: NDArray[np.int8]
    zones: NDArray[np.int64]
    aligned: NDArray[np.bool_]

    def reason_of(self, index: int) -> str:
        """Returns the kubelet's reason for a node, "" if the pod fits; "OutOf" lacks the resource."""
        return Engine.reasons[int(self.reason[index])]


def judge(
    engine: Engine, pod: PodRequests, rows: NDArray[np.int32] | None = None, *, located: bool = False
) -> Judgement:
    """The verdicts of these rows, or of all; with `located` the model computes every placement that needs it."""
    rows = _all_rows(engine) if rows is None else rows
    cached = engine._current(pod, rows)
    if located:
        _locate_all(engine, cached, pod, rows[cached.outcome[rows] == Outcome.FITS])
    return Judgement(rows, cached.outcome[rows], cached.reason[rows], cached.zones[:, rows], cached.aligned[:, rows])


def _locate_all(engine: Engine, cached: CachedVerdicts, pod: PodRequests, fitting: NDArray[np.int32]) -> None:
    """Computes every placement by the model that the arrays do not give exactly; the engine computes a few."""
    list(engine._locating(cached, pod, fitting))
    for row in fitting[cached.located[fitting] < EXACT].tolist():
        form = pod.form(engine._groups[int(engine._where[0, row])].traits)
        tried = trial(engine._kubelet(row), form.view)
        if tried.admission.admitted:
            engine.fallbacks["placement"] += 1
            engine._keep_placement(cached, row, tried.after, form)


def candidates(engine: Engine, pod: PodRequests, rows: NDArray[np.int32] | None = None) -> Parts:
    """Returns the nodes on which the pod fits, as strategies get them, each with its index in `rows`."""
    rows = _all_rows(engine) if rows is None else rows
    cached = engine._current(pod, rows)
    fits = np.flatnonzero(cached.outcome[rows] == Outcome.FITS)
    list(engine._locating(cached, pod, rows[fits]))
    return _indexed(fits, engine._candidates(cached, pod, rows[fits]))


def rate(strategy: Strategy, parts: Parts) -> Rated:
    """Returns the rated candidates of a call."""
    rater, empty = Rater(strategy), np.zeros(0, np.int64)
    ratings = [(np.zeros(0, np.intp), empty, empty, np.zeros(0, np.int8))]
    ratings += [(indices, *rater.rate(nodes)) for indices, nodes in parts]
    return rater.finished(Ratings(*map(np.concatenate, zip(*ratings, strict=True))))


def _indexed(fits: NDArray[np.intp], parts: Parts) -> Iterator[tuple[NDArray[np.intp], Candidates]]:
    for indices, nodes in parts:
        yield fits[indices], nodes


def _all_rows(engine: Engine) -> NDArray[np.int32]:
    return np.array(sorted(engine._row_of.values()), dtype=np.int32)
