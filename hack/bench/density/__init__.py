"""Density: how many pods of a mix run on a cluster before one finds no place, and when none finds one any more.

The same stream of pods is placed by each scheduler (schedulers.py) on clusters of the same machine cut into 1, 2, 4 and
8 NUMA nodes. The kubelet, which has the last word, is the model of one node; nothing is estimated by what is measured.
"""

from bench.density.measuring import measure

__all__ = ["measure"]
