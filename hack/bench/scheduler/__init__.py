"""The scheduler service as a process: what kube-scheduler waits for, through HTTP with keep-alive.

5,000 servers of 8 NUMA nodes and 5 resources with 150,000 pods, from an emulated API server (catalogue.py) in its own
process. Calls are as from kube-scheduler: a single connection, a filter and a prioritize per pod, with 500 names or
all; the reservation after an answer overlaps with the next call. Successive filters have different nodes, and a
prioritize has the nodes that its filter returned; with 500 names, only calls in which nearly all nodes fit count.

BENCH_NODES (5000), BENCH_CALLS (1000) and BENCH_STORM_S (6) scale all of it down.
"""

from bench.scheduler.measuring import measure

__all__ = ["measure"]
