"""Density: how many pods of a mix a cluster runs before the first pod waits.

Each scheduler of schedulers.py gets the same stream of pods, on clusters of the same machine cut into 2 and 8 NUMA
nodes. The kubelet model of each node decides about admission.
"""

from bench.density.measuring import measure

__all__ = ["measure"]
