"""The hardware of the node, scanned at an interval and after a kernel event."""

from __future__ import annotations

from typing import Final, NamedTuple

import psutil

from topowise.quantity import human_bytes
from topowise.runtime import clock
from topowise_exporter import machine
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.machine.inventory import Machine

# On old kernels, MemTotal of the NUMA nodes exceeds MemTotal of the machine by up to 3 %.
_MEMORY_TOLERANCE_PERCENT: Final = 5
# For changes of which the kernel sends no event, such as a renamed network device. A scan takes some milliseconds.
_SCAN_INTERVAL_S: Final = 60.0


class HardwareReading(NamedTuple):
    """The machine, its boot id ("" if the kernel has none), and why its memory looks wrong ("" if it does not)."""

    machine: Machine
    boot_id: str = ""
    memory_problem: str = ""


class Hardware:
    """Scans /sys and /proc at most once a minute, unless `forget` is called."""

    def __init__(self, settings: ExporterConfiguration) -> None:
        self._settings = settings
        # A process ends with the boot of its machine.
        self._boot_id = machine.read_boot_id(settings.procfs_root)
        self._last: HardwareReading | None = None
        self._scanned_at = 0.0

    def forget(self) -> None:
        """Make the next read scan."""
        self._last = None

    def read(self) -> HardwareReading:
        """The same machine object until the next scan."""
        now = clock.monotonic()
        if self._last is None or now - self._scanned_at >= _SCAN_INTERVAL_S:
            scanned = machine.scan(self._settings.sysfs_root, self._settings.procfs_root)
            # Only the /proc of this machine has a kernel that psutil can ask.
            is_own = self._settings.procfs_root == "/proc"
            problem = memory_problem(scanned, psutil.virtual_memory().total) if is_own else ""
            self._last, self._scanned_at = HardwareReading(scanned, self._boot_id, problem), now
        return self._last


def memory_problem(scanned: Machine, total_bytes: int) -> str:
    """Returns both amounts if the memory of the NUMA nodes does not add up to `total_bytes`, else ""."""
    sum_bytes = sum(node.memory_bytes for node in scanned.nodes)
    # A kernel without NUMA shows no memory of nodes.
    if not sum_bytes or abs(sum_bytes - total_bytes) * 100 <= total_bytes * _MEMORY_TOLERANCE_PERCENT:
        return ""
    return f"the nodes have {human_bytes(sum_bytes)}, the machine {human_bytes(total_bytes)}"
