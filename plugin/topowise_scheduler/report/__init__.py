"""Turns the NodeResourceTopology of a node into the state of the kubelet model.

The precision of a report is either exact or counts, and depends on the object alone. *Exact*: our exporter publishes
each core, the kubelet's configuration and each container's allocation by id. The model is a model of the node itself.
*Counts*: the object has amounts only, and synthetic_machine.py builds the simplest machine with these amounts. If an
attribute of ours is missing or damaged, the precision is counts, and `problems` says why.

The podresources API does not return the following, so an exact report lacks it too:

- Devices of plain init containers. They look free until the pod ends.
- Unhealthy devices that no container has, and a device plugin without any healthy or allocated device.
- The difference between an empty topology of a device and no topology, and the preferred allocations of a plugin.
- The container that owns the memory of an unfinished init container. The memory is not free.
- The stored hints of containers, which only a kubelet restart reads.
- The capacity of local storage, so ephemeral-storage is not checked.
"""

from topowise_scheduler.report.kubelet_state import kubelet_of
from topowise_scheduler.report.nrt_report import PageSizes, Placements, PodName, Precision, Report
from topowise_scheduler.report.reader import of_node, read, read_bytes, read_lazily

__all__ = [
    "PageSizes",
    "Placements",
    "PodName",
    "Precision",
    "Report",
    "kubelet_of",
    "of_node",
    "read",
    "read_bytes",
    "read_lazily",
]
