"""The exporter as a process: the delay from a change on the node to the API server, and the cost of watching.

The emulated kubelet has 250 pods on a machine of 8 NUMA nodes, 8 GPUs and 64 virtual functions, a socket and state
files. The API server's own write time is measured in the same run with the same object, and subtracted.
"""

from bench.exporter.measuring import measure

__all__ = ["measure"]
