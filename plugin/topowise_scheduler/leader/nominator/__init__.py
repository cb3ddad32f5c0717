"""Nominating ahead: pods that wait are told where they will go before kube-scheduler comes to them.

kube-scheduler tries `status.nominatedNodeName` first and alone: its own filters on one node, one question of one name,
no scores (schedule_one.go, evaluateNominatedNode). Whoever knows where a pod will go and says so saves it the search of
all nodes. `deciding.py` knows, `writing.py` says so.
"""

from topowise_scheduler.leader.nominator.board import Cluster
from topowise_scheduler.leader.nominator.deciding import Decisions
from topowise_scheduler.leader.nominator.requested import Requested
from topowise_scheduler.leader.nominator.writing import Nominator

__all__ = ["Cluster", "Decisions", "Nominator", "Requested"]
