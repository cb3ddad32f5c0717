"""What a placement is scored by: the room of nodes NUMA node by NUMA node, and where the pod would go.

A `Room` holds nodes with equally many NUMA nodes, so that a strategy is a few numpy expressions over all of them at
once. Every array has the nodes as its last axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topowise.pods import Kind


@dataclass(frozen=True, slots=True)
class Step:
    """One container in the order of admission, and what its hint is about.

    `amounts` are named as in Kubernetes: "cpu" in whole exclusive CPUs, "memory" and "hugepages-*" in bytes, devices
    counted. What the managers of these nodes do not align is left out, and so is what the container does not ask for.
    A plain init container (`kind` "init") has ended before those after it run, and leaves them what it had.
    """

    name: str
    kind: Kind
    amounts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Room:
    """Nodes on which a pod fits, before it is there.

    `rows` (nodes,) are rows of the engine. `distances` (zones, zones, nodes) is the SLIT, 10 and 20 where a node does
    not tell. `allocatable` and `available` map a resource to (zones, nodes) int64 by position: what a zone can give to
    pods, and what of it nobody holds; 0 where a node or a zone has none of it. `masks` (steps, nodes) are the hints,
    bit z for position z, 0 for none.
    """

    rows: NDArray[np.int32]
    zones: int
    distances: NDArray[np.int32]
    allocatable: Mapping[str, NDArray[np.int64]]
    available: Mapping[str, NDArray[np.int64]]
    steps: tuple[Step, ...]
    masks: NDArray[np.int32]
