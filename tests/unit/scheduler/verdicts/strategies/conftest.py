"""Short constructors of candidates, and scores of a strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from topowise_scheduler.configuration import Scoring
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.engine import AlignedContainer, Candidates

Zone = Mapping[str, int]
Node = Sequence[Zone]


def candidates_of(
    *nodes: Node,
    containers: Sequence[Mapping[str, int]],
    masks: Sequence[Sequence[int]],
    kinds: Sequence[str] = (),
    whole: Sequence[Node] | None = None,
    distances: Sequence[Sequence[int]] | None = None,
    aligned: Sequence[Sequence[bool]] = (),
    by_pod: bool = False,
) -> Candidates:
    """Nodes by the available amounts of their zones, and by the allocatable amounts `whole` (default: available).

    `masks` has a row of NUMA masks per container, and so has `aligned` (default: all True). `kinds` are "app" by
    default; `distances` are equal on every node, 10 and 20 by default.
    """
    zones = len(nodes[0])
    whole = nodes if whole is None else whole
    names = sorted({name for node in (*nodes, *whole) for zone in node for name in zone})

    def table(nodes_: Sequence[Node], name: str) -> np.ndarray:
        return np.array([[zone.get(name, 0) for zone in node] for node in nodes_], np.int64).T.copy()

    matrix = np.where(np.eye(zones, dtype=bool), 10, 20) if distances is None else np.array(distances)
    return Candidates(
        rows=np.arange(len(nodes), dtype=np.int32),
        zones=zones,
        distances=np.repeat(matrix[:, :, None], len(nodes), axis=2).astype(np.int32),
        allocatable={name: table(whole, name) for name in names},
        available={name: table(nodes, name) for name in names},
        containers=tuple(
            AlignedContainer(f"c{number}", kind, amounts)  # type: ignore[arg-type]
            for number, (kind, amounts) in enumerate(zip(kinds or ["app"] * len(containers), containers, strict=True))
        ),
        placed=np.array(masks, np.int64).reshape(len(containers), len(nodes)),
        aligned=np.array(aligned if aligned else [[True] * len(nodes)] * len(containers), np.bool_).reshape(
            len(containers), len(nodes)
        ),
        by_pod=by_pod,
    )


def scores(name: str, candidates: Candidates, weights: Mapping[str, int] | None = None, **options: object) -> list[int]:
    """Finished raw scores of a strategy with its defaults; `options` as in the configuration."""
    strategy = strategies.make(name, weights or {}, Scoring(**options))  # type: ignore[arg-type]
    finished = strategy.finish(strategy.raw(candidates))
    assert finished.dtype == np.int64
    return finished.tolist()
