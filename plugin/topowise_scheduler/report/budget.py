"""The bounds of one report. They are above every machine that Linux runs on, and keep the cost of one object small.

Whoever may write one NodeResourceTopology must not be able to stop or slow what the service does for other nodes. A
report has two kinds of bounds:

- The bounds of the object. A report above one of them is not used (`OverBudgetError`), and its node is treated as if
  the object had been deleted: a node gains no more from an object that is too large than from none.
- The bounds of a part. Without the part the report still says something: an exact report becomes one of counts, and of
  counts that are too many only the sum is checked.

Names of resources need no Node that advertises them: a device plug-in may register before the Node's status says so,
and the report of a node may come before its Node. A name costs only the node that reports it (engine.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from topowise import nrt
from topowise_scheduler.report.nrt_report import ReportError

# Of the object.
MAX_BYTES: Final = nrt.MOST_BYTES
"""Of the JSON. Our exporter leaves parts out of an object that would be larger."""
MAX_ZONES: Final = 256
"""Of any type. No machine has more than 64 NUMA nodes; exporters may list ids that no node has."""
MAX_ATTRIBUTES: Final = 4096
"""On top and of all zones together."""
MAX_AMOUNTS: Final = 1024
"""Resources of all zones together; of reports of counts."""
MAX_NAMES: Final = 128
"""Names of resources. A machine has some 30: CPUs, memory, page sizes, and a name for each kind of device."""
LONGEST_NAME: Final = 317
"""Characters of a resource's name: a DNS subdomain, a slash and a label."""

# Of a part. More than any NUMA node has: beyond it a number of CPUs is damage, and so many units are no plug-in's.
MAX_CPUS: Final = 2048
MAX_DEVICES: Final = 4096
# CPUs and devices of a machine. The largest machines have 1,920 CPUs, and KubeVirt's plug-ins list 3,000 devices.
MAX_ALL_CPUS: Final = 2048
MAX_ALL_DEVICES: Final = 8192
# Of holdings: pods, the containers of one pod, and the containers of all pods.
MAX_PODS: Final = 1024
MAX_CONTAINERS_OF_A_POD: Final = 256
MAX_CONTAINERS: Final = 2048
# Of an exact report: sizes of hugepages, of which an architecture has a few, and entries of reservedMemory, of which
# each NUMA node has one.
MAX_PAGE_SIZES: Final = 16
MAX_RESERVATIONS: Final = 64

# Characters of texts that are longer than those of real machines, and are not remembered for other nodes.
MEMORABLE_FACTS: Final = 1 << 15
MEMORABLE_PLACES: Final = 1 << 13
MEMORABLE_HOLDING: Final = 512

_NOT_USED: Final = "the report is not used; see what writes the object, or delete it"


class OverBudgetError(ReportError):
    """The object is more than a report may be."""


def check_size(size: int) -> None:
    """Raises OverBudgetError for an object of too many bytes."""
    _check("object", size, "bytes", MAX_BYTES)


def check_object(topology: nrt.NodeResourceTopology | nrt.Apart) -> None:
    """Raises OverBudgetError for too many zones or attributes."""
    zones = topology.zones or ()
    _check("zones", len(zones), "", MAX_ZONES)
    count = len(topology.attributes or ()) + sum([len(zone.attributes or ()) for zone in zones])
    _check("attributes", count, "on top and of all zones", MAX_ATTRIBUTES)


def check_amounts(zones: Iterable[nrt.Zone]) -> None:
    """Raises OverBudgetError for too many amounts, or names of resources."""
    count, names = 0, set[str]()
    for zone in zones:
        listed = zone.resources or ()
        count += len(listed)
        _check("zones", count, "resources in all", MAX_AMOUNTS)
        names.update([one.name for one in listed])
    if not are_few(names):
        longest = max(map(len, names))
        _check("resources", len(names), "names", MAX_NAMES)
        _check("resources", longest, "characters in a name", LONGEST_NAME)


def are_few(names: Collection[str]) -> bool:
    """Whether a report may name these resources."""
    return len(names) <= MAX_NAMES and all(len(name) <= LONGEST_NAME for name in names)


def _check(thing: str, count: int, of: str, most: int) -> None:
    if count > most:
        raise OverBudgetError(f"{thing}: {count}{of and f' {of}'}, expected at most {most}; {_NOT_USED}")
