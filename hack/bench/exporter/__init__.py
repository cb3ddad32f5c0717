"""The exporter as a process: how soon a change on the node is on the API server, and what watching costs.

A kubelet with 250 pods on a machine of 8 NUMA nodes, 8 GPUs and 64 virtual functions is emulated by its socket and
state files. The API server's own write time is measured in the same run with the same object, and taken off.
"""

from bench.exporter.measuring import measure

__all__ = ["measure"]
