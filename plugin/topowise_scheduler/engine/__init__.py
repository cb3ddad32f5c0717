"""Which nodes a pod fits on, where on them it will go, and how good that is.

`Engine` decides for thousands of nodes at once what `kubelet.Kubelet` decides for one, and never differs from it: what
its arithmetic over counts cannot tell is asked of the model, and counted. Its modules, from the outside in:

    engine -> cache, candidates -> admission -> topology, cpu, memory and device manager -> node_groups
           -> counts, verdicts -> masks
"""

from topowise_scheduler.engine.candidates import AlignedContainer, Candidates
from topowise_scheduler.engine.engine import Engine, Ratings
from topowise_scheduler.engine.verdicts import Judgement, Outcome

__all__ = ["AlignedContainer", "Candidates", "Engine", "Judgement", "Outcome", "Ratings"]
