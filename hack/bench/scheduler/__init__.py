"""The scheduler service as a process: what kube-scheduler waits for, through HTTP with keep-alive.

5,000 servers of 8 NUMA nodes and 5 resources with 150,000 pods, from a stand-in of the API server (catalogue.py) that
costs the service's core nothing. Calls come as from kube-scheduler: one connection, a filter and a prioritize a pod,
500 names of all or all of them; the reservation that follows an answer is under way when the next call comes. Each
filter is about other nodes than the one before, and prioritize about those that it kept; of 500 names, only calls count
in which nearly all were kept. TightFit is measured on the whole cluster, TLS and the other strategies on one of the
same nodes without pods.

BENCH_NODES (5000), BENCH_CALLS (1000) and BENCH_STORM_S (6) scale all of it down.
"""

from bench.scheduler.measuring import measure

__all__ = ["measure"]
