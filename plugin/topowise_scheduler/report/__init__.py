"""A node as its NodeResourceTopology tells it, as the state of the kubelet model.

Two precisions. *Exact*: our exporter publishes the machine core by core, the kubelet's configuration, and who holds
what by id; the model made of these decides as one made on the node itself. *Counts*: of what any other exporter
publishes, the simplest machine with these amounts is made (synthetic_machine.py). Which one it is depends on the object alone,
and a part of ours that is missing or damaged makes it counts, with a line that says why.

What podresources does not tell, an exact report cannot have either:

- devices held by plain init containers, as they are in no list; they look free until the pod ends;
- unhealthy devices nobody holds, and a device plugin none of whose devices is healthy or held;
- a device's empty topology, which is read as none, and which devices a plugin prefers;
- memory of init containers that have not finished yet: it is not free, but nobody's;
- the hints stored with containers, which only a restart of the kubelet asks for;
- capacity of local storage, so that it is not checked.
"""

from topowise_scheduler.report.kubelet_state import kubelet_of
from topowise_scheduler.report.nrt_report import PageSizes, Placements, PodName, Precision, Report
from topowise_scheduler.report.reader import read, read_apart, read_bytes
from topowise_scheduler.report.versions import of_node

__all__ = [
    "PageSizes",
    "Placements",
    "PodName",
    "Precision",
    "Report",
    "kubelet_of",
    "of_node",
    "read",
    "read_apart",
    "read_bytes",
]
