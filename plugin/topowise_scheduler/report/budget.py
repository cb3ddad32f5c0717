"""Limits of a report: above every machine that Linux runs on, and low enough that an object costs little.

A client that may write a single NodeResourceTopology must not stop or slow the service for other nodes. There are:

- Limits of the object. The service does not use a report above such a limit (`OverBudgetError`). It treats the node as
  if the object had been deleted, so an oversized object gives a node no advantage.
- Limits of a part. Without it an exact report becomes a report of counts, and too many counts are checked as a sum.

A resource name needs no Node that advertises it. A device plugin may register before the Node's status shows the
resource, and a report may arrive before its Node. A name costs memory for the reporting node only (engine.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from topowise import nrt
from topowise_scheduler.report.nrt_report import ReportError

# Limits of the object.
MAX_BYTES: Final = nrt.MOST_BYTES
"""Bytes of JSON. Our exporter drops parts to stay below."""
MAX_ZONES: Final = 256
"""Zones of all types. No machine has more than 64 NUMA nodes; exporters may list ids without a node."""
MAX_ATTRIBUTES: Final = 4096
"""Attributes of the object and of all its zones."""
MAX_AMOUNTS: Final = 1024
"""Resource entries in all zones, for reports of counts."""
MAX_NAMES: Final = 128
"""Resource names. A machine has about 30: cpu, memory, page sizes, and a name for each kind of device."""
LONGEST_NAME: Final = 317
"""Characters of a resource name: a DNS subdomain (253), a slash and a label (63)."""

# Limits of a part, per NUMA node and resource. A larger number of CPUs is damage; a resource with more units is no
# device plugin's.
MAX_CPUS: Final = 2048
MAX_DEVICES: Final = 4096
# Limits of a machine. The largest machines have 1,920 CPUs, and KubeVirt's device plugins list 3,000 devices.
MAX_ALL_CPUS: Final = 2048
MAX_ALL_DEVICES: Final = 8192
# Limits of the holdings attribute: pods, containers of a pod, containers of all pods.
MAX_PODS: Final = 1024
MAX_CONTAINERS_OF_A_POD: Final = 256
MAX_CONTAINERS: Final = 2048
# Limits of an exact report: an architecture has few page sizes, and reservedMemory has an entry per NUMA node.
MAX_PAGE_SIZES: Final = 16
MAX_RESERVATIONS: Final = 64

# Characters. A longer text is no real machine's, and is not cached for other nodes.
MEMORABLE_FACTS: Final = 1 << 15
MEMORABLE_PLACES: Final = 1 << 13
MEMORABLE_HOLDING: Final = 512

_NOT_USED: Final = "the report is not used; see what writes the object, or delete it"


class OverBudgetError(ReportError):
    """The object exceeds a limit of the object."""


def check_size(size: int) -> None:
    """Raises OverBudgetError for an object of too many bytes."""
    _check("object", size, "bytes", MAX_BYTES)


def check_object(topology: nrt.NodeResourceTopology | nrt.LazyTopology) -> None:
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
        names.update([resource.name for resource in listed])
    if not are_few(names):
        longest = max(map(len, names))
        _check("resources", len(names), "names", MAX_NAMES)
        _check("resources", longest, "characters in a name", LONGEST_NAME)


def are_few(names: Collection[str]) -> bool:
    """Returns whether the number and the lengths of these resource names are within the limits."""
    return len(names) <= MAX_NAMES and all(len(name) <= LONGEST_NAME for name in names)


def _check(thing: str, count: int, unit: str, limit: int) -> None:
    if count > limit:
        raise OverBudgetError(f"{thing}: {count}{unit and f' {unit}'}, expected at most {limit}; {_NOT_USED}")
