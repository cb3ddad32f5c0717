"""Places gated pods: chooses their nodes, and opens their gates so that any kube-scheduler binds them.

board     the nodes that take pods of a class, and the best of them, kept from pod to pod
deciding  which pod is placed next and where; groups as a whole
writing   writes the decisions, and the end of placements that came to nothing
"""

from topowise_scheduler.controllers.placement.deciding import Decisions
from topowise_scheduler.controllers.placement.writing import Placer

__all__ = ["Decisions", "Placer"]
