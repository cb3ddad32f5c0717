"""Plans which pods to move to other nodes so that more pods of a class fit, aligned, with the fewest moves.

movable.py selects the pods that may be moved, scene.py applies steps to copies of the cluster, bound.py gives a lower
bound of the pods that must leave a node, search.py finds the pods to move, and tries every plan of a small cluster.
Nothing here does I/O or changes the ledger.
"""

from topowise_scheduler.overlay.defrag.movable import Hindrance, Movable, sort
from topowise_scheduler.overlay.defrag.scene import Change, Step
from topowise_scheduler.overlay.defrag.search import Plan, Shortfall, plan

__all__ = ["Change", "Hindrance", "Movable", "Plan", "Shortfall", "Step", "plan", "sort"]
