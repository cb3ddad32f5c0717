"""Nominates pending pods for nodes before kube-scheduler tries the pods.

kube-scheduler tries `status.nominatedNodeName` first and alone: its filters run on a single node, the extender gets a
request with a single name, and no scores are needed (schedule_one.go, evaluateNominatedNode). A correct nomination
saves the evaluation of all nodes. `deciding.py` makes the decisions, `writing.py` writes them.
"""

from topowise_scheduler.controllers.nominator.board import Cluster
from topowise_scheduler.controllers.nominator.deciding import Decisions
from topowise_scheduler.controllers.nominator.writing import Nominator
from topowise_scheduler.ledger.requested import Requested

__all__ = ["Cluster", "Decisions", "Nominator", "Requested"]
