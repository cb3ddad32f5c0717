"""Which pods to move to other nodes so that more pods of one kind fit, aligned: the fewest, in an order that works.

movable.py says who may be moved at all, scene.py keeps the cluster on copies and asks the model about every step,
bound.py knows how many pods must leave a node at the least, search.py finds who leaves which node, exhaustive.py tries
every plan where the cluster is small, planning.py puts it together. Nothing here does I/O, and nothing is changed but
copies.
"""

from topowise_scheduler.defrag.movable import Movable, sort
from topowise_scheduler.defrag.planning import Plan, finished, one_more, plan
from topowise_scheduler.defrag.scene import Change, Step

__all__ = ["Change", "Movable", "Plan", "Step", "finished", "one_more", "plan", "sort"]
