"""Plans: what a change of kubelets, machines or schedulers does to the pods of a cluster, decided offline.

    inventory, workloads, change -> Scenario -> decide -> Result

Each placement is decided by the gates of the service and the model of the kubelet, in the service's own ledger. Values
are in values.py; changes.py and machines.py apply a change to nodes; fleet.py and filling.py place pods;
scenario.py decides a scenario; search.py finds the smallest change. Nothing here does I/O or reads a clock.
"""

from topowise_scheduler.overlay.plan.filling import Placed
from topowise_scheduler.overlay.plan.fleet import Fleet, Scheduler
from topowise_scheduler.overlay.plan.inventory import inventory_of, pod_of, read_machine
from topowise_scheduler.overlay.plan.machines import regular, with_numa_nodes
from topowise_scheduler.overlay.plan.scenario import decide, fleet_of
from topowise_scheduler.overlay.plan.search import Found, smallest
from topowise_scheduler.overlay.plan.values import (
    KUBE_SCHEDULER,
    NOT_MODELLED,
    TODAY,
    Arrival,
    Change,
    Inventory,
    NodeType,
    PlanError,
    PlannedNode,
    Result,
    Scenario,
    Waits,
    Workload,
)

__all__ = [
    "KUBE_SCHEDULER",
    "NOT_MODELLED",
    "TODAY",
    "Arrival",
    "Change",
    "Fleet",
    "Found",
    "Inventory",
    "NodeType",
    "Placed",
    "PlanError",
    "PlannedNode",
    "Result",
    "Scenario",
    "Scheduler",
    "Waits",
    "Workload",
    "decide",
    "fleet_of",
    "inventory_of",
    "pod_of",
    "read_machine",
    "regular",
    "smallest",
    "with_numa_nodes",
]
