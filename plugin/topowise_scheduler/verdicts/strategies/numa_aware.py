"""NUMAAware: the fewer NUMA nodes the pod uses, the better, relative to the other candidates (Volcano's numa-aware).

`100 - 100 * n / max n` over the candidates, truncated, 100 for all if max n is 0 (getNodeNumaNumForTask and
NormalizeScore in Volcano, pkg/scheduler/plugins/numaaware, read at ed72c7c). The score is in hundredths of a percent;
kube-scheduler's weight of the extender replaces Volcano's weight. Differences:

- n counts the NUMA nodes of all resources of the pod, including sidecars. Volcano uses the hint for CPUs only and
  ignores sidecars;
- so a node that aligns nothing counts with its kubelet's allocation. In Volcano it has n = 0 and beats every node that
  aligns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.verdicts.engine import Candidates
from topowise_scheduler.verdicts.strategies.allocations import INIT
from topowise_scheduler.verdicts.strategies.scale import RAW_MAX, Strategy

_PERCENT = RAW_MAX // 100


class NUMAAware(Strategy):
    """Without options."""

    def raw(self, candidates: Candidates) -> NDArray[np.int64]:
        """(nodes,) minus the number of NUMA nodes used."""
        used = np.zeros(candidates.placed.shape[1], np.int64)
        for container, placed in zip(candidates.containers, candidates.placed, strict=True):
            if container.kind != INIT:
                used |= placed
        return -np.bitwise_count(used).astype(np.int64)

    def finish(self, raw: NDArray[np.int64]) -> NDArray[np.int64]:
        """(nodes,) of all candidates, 0 to RAW_MAX."""
        most = -int(raw.min()) if raw.size else 0
        if not most:
            return np.full_like(raw, RAW_MAX)
        return (100 - 100 * -raw // most) * _PERCENT
