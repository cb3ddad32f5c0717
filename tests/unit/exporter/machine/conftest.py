"""A small generated machine to damage, and the scan of a root."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import machines
from topowise_exporter.machine import Machine, scan

# CPUs 0,1,4,5 on node 0 and 2,3,6,7 on node 1, threads {0,4} {1,5} {2,6} {3,7}.
SMALL = machines.Machine(
    nodes=(
        machines.Node(0, machines.GIB, socket=0, cores=2, hugepages={machines.PAGE_2M: 8, machines.PAGE_1G: 0}),
        machines.Node(1, 2 * machines.GIB, socket=1, cores=2, hugepages={machines.PAGE_2M: 4, machines.PAGE_1G: 1}),
    ),
    distances=((10, 21), (22, 10)),
    pci=(
        machines.Pci("0000:00:1f.0", None, "0x060100", "0x8086", "0x2918"),
        *machines.nic("0000:98:00.0", 1, "0000:97:00.0", virtual_functions=2),
    ),
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A root with sys and proc of the small machine, free to be damaged."""
    machines.write_tree(SMALL, tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def read() -> Callable[[Path], Machine]:
    """Scans a root with sys and proc."""
    return lambda root: scan(str(root / "sys"), str(root / "proc"))
