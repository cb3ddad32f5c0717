"""Which nodes a pod fits on, its NUMA placement there, and the rating of that placement.

`Engine` gives the verdict of `kubelet.Kubelet` for thousands of nodes at once. Where amounts per NUMA node do not
decide, it uses the kubelet model of the node and counts that in `fallbacks`. Its modules, from the outside in:

    engine -> verdict_cache, candidates -> batch_admission -> topology, cpu, memory and device manager
           -> node_groups, node_arrays -> node_vector, verdicts -> mask_arrays
"""

from topowise_scheduler.verdicts.engine.candidates import AlignedContainer, Candidates
from topowise_scheduler.verdicts.engine.engine import Engine, Ratings
from topowise_scheduler.verdicts.engine.verdicts import Outcome

__all__ = ["AlignedContainer", "Candidates", "Engine", "Outcome", "Ratings"]
