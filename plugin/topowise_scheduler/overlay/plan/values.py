"""The values of a plan: nodes as they are, pods to place, a change, and the result of the change.

All of them are immutable. A plan is a function of these values (scenario.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from topowise.errors import TopowiseError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.pods import Amounts
from topowise_scheduler.kubelet import Kubelet, KubeletVersion, Machine
from topowise_scheduler.kubelet.configuration import Evidence, Settings
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED
from topowise_scheduler.ledger.budgets import Budget
from topowise_scheduler.report import Report
from topowise_scheduler.report.restart_forecast import NodeRestart
from topowise_scheduler.verdicts.kube_scheduler import NodeObject, Pod
from topowise_scheduler.verdicts.refusals import Reason

KUBE_SCHEDULER: Final = "kube-scheduler"
"""The scheduler of a scenario without topowise: the sums of kube-scheduler choose the node, and the kubelet decides."""

NOT_MODELLED: Final = (
    "volumes, host ports, inter-pod affinity and topology spread",
    "resource claims (DRA)",
    "preemption, quotas, gangs, and the plug-ins of other schedulers",
    "the time that schedulers and kubelets take for a pod",
)
"""What no plan considers. The terms of a pod that are left out are in `Result.unexamined` too."""

Existing = Literal["stay", "restart", "replace", "ignore"]
"""What happens to the pods that run. "stay": only the pods of changed and removed nodes are placed again, as after a
drain. "restart": the kubelets of changed nodes restart with their pods, and refused pods are placed again. "replace":
all pods are placed again. "ignore": the plan is without them."""


class PlanError(TopowiseError):
    """A change that cannot be applied: what, its value, and what was expected."""


class NodeType(msgspec.Struct, frozen=True):
    """A machine with the settings and the version of its kubelet.

    `Settings` describe a node whose report has amounts only, `allocatable` is then the node allocatable of the report.
    `evidence`: whether a kubelet is known to run with the configuration.
    """

    machine: Machine
    configuration: KubeletConfiguration | Settings
    version: KubeletVersion = NEWEST_RECORDED
    evidence: Evidence = "none"
    allocatable: Amounts | None = None

    def kubelet(self) -> Kubelet:
        """Returns the kubelet without pods. Raises KubeletStartError if it would not start."""
        return Kubelet(
            self.machine,
            self.configuration,
            version=self.version,
            evidence=self.evidence,
            allocatable=self.allocatable,
        )


class PlannedNode(msgspec.Struct, frozen=True):
    """A node of the inventory. `type` is None if its report does not describe a machine; such a node cannot change.

    `report` is None for a node that does not exist yet, `object` is its Node, None if it is unknown.
    """

    name: str
    type: NodeType | None
    report: Report | None = None
    object: NodeObject | None = None


class Inventory(msgspec.Struct, frozen=True):
    """Nodes and pods as they are at `now` (seconds since 1970). `types` can be added by name."""

    nodes: tuple[PlannedNode, ...] = ()
    pods: tuple[Pod, ...] = ()
    budgets: tuple[Budget, ...] = ()
    types: Mapping[str, NodeType] = {}
    now: float = 0.0


class Workload(msgspec.Struct, frozen=True):
    """`count` copies of a pod, None for as many as fit; a pod of a DaemonSet `is_on_every_node`."""

    name: str
    pod: Pod
    count: int | None = 1
    is_on_every_node: bool = False

    @property
    def priority(self) -> int:
        """The priority of the pod."""
        return self.pod.spec.priority or 0


class Arrival(msgspec.Struct, frozen=True):
    """A pod of a trace: it comes at `at` (seconds) and runs for `duration` seconds, None for ever."""

    at: float
    workload: Workload
    duration: float | None = None


class Change(msgspec.Struct, frozen=True):
    """What differs from the inventory. A field that is None or empty changes nothing.

    The fields from `policy` to `numa` change the nodes that `nodes` names, or all nodes. `topology_options` and
    `cpu_options` are added to the present options. `reserved_memory`: bytes as a quantity by NUMA node. `numa`: NUMA
    nodes of each machine (SNC, NPS). `add`: numbers of nodes by the name of a type, or of a node that serves as the
    type. `scheduler`: a strategy of topowise, or KUBE_SCHEDULER. `steering`: every container that gets exclusive
    resources requests a marker. `moves`: pods that may be moved for pods that fit nowhere (defrag).
    """

    name: str = ""
    policy: str | None = None
    scope: str | None = None
    topology_options: Mapping[str, str] = {}
    cpu_manager: str | None = None
    cpu_options: Mapping[str, str] = {}
    memory_manager: str | None = None
    reserved_cpus: str | None = None
    reserved_memory: Mapping[int, str] = {}
    version: str | None = None
    numa: int | None = None
    nodes: tuple[str, ...] = ()
    add: Mapping[str, int] = {}
    remove: tuple[str, ...] = ()
    scheduler: str | None = None
    steering: bool | None = None
    moves: int | None = None

    @property
    def is_of_kubelets(self) -> bool:
        """Whether kubelets restart with other settings."""
        fields = (self.policy, self.scope, self.cpu_manager, self.memory_manager, self.reserved_cpus, self.version)
        mappings = (self.topology_options, self.cpu_options, self.reserved_memory)
        return any(field is not None for field in fields) or any(mappings)


TODAY: Final = Change("today")


class Scenario(msgspec.Struct, frozen=True):
    """What a plan decides: the inventory after a change, and the pods to place. With `trace` time passes, and
    `workloads` come before it."""

    inventory: Inventory
    workloads: tuple[Workload, ...] = ()
    trace: tuple[Arrival, ...] = ()
    change: Change = TODAY
    existing: Existing = "stay"


class WorkloadResult(msgspec.Struct, frozen=True):
    """`asked` is None for a workload that fills the nodes. `why` counts nodes by the refusal of the next pod, or by
    kube-scheduler's own words."""

    name: str
    asked: int | None
    placed: int
    why: Mapping[Reason, int] = {}

    @property
    def refused(self) -> int:
        """Pods that fit nowhere."""
        return 0 if self.asked is None else self.asked - self.placed


class ResourceResult(msgspec.Struct, frozen=True):
    """Amounts of a resource on all nodes: milli-CPUs, bytes or devices.

    `stranded` is free on nodes that take none of the planned pods that request the resource, None without such pods.
    For a trace `used` is the mean over time.
    """

    name: str
    allocatable: int
    used: int
    stranded: int | None = None

    @property
    def free(self) -> int:
        """What no pod requests."""
        return self.allocatable - self.used


class Waits(msgspec.Struct, frozen=True):
    """Seconds that the pods of a trace waited; `never` is the number of pods that did not start."""

    started: int
    never: int
    median: float
    p95: float
    longest: float
    end: float
    """When the last pod ended, in the seconds of the trace."""


class Result(msgspec.Struct, frozen=True):
    """The outcome of a scenario.

    `error`: why the change is impossible; then nothing else is known. `replaced` pods ran and were placed again,
    `displaced` pods ran and fit nowhere now. `kubelet_refusals` are pods that a kubelet refused after they were sent
    there. `restarts` are forecasts for nodes with exact reports, `without_forecast` the number of other changed nodes.
    `moves` are the pods that were moved. `nodes_used` have a planned pod. `spread`: planned pods that run at the end
    with resources on several NUMA nodes. `unexamined`: terms of pods that are not checked. `is_complete` is False if
    the plan was stopped.
    """

    change: Change
    error: str = ""
    nodes: int = 0
    nodes_used: int = 0
    spread: int = 0
    workloads: tuple[WorkloadResult, ...] = ()
    resources: tuple[ResourceResult, ...] = ()
    replaced: int = 0
    displaced: tuple[str, ...] = ()
    kubelet_refusals: int = 0
    restarts: tuple[NodeRestart, ...] = ()
    without_forecast: int = 0
    waits: Waits | None = None
    moves: int = 0
    unexamined: Mapping[str, tuple[str, ...]] = {}
    kubelets: Mapping[str, Kubelet] = {}
    """The nodes after the plan, for pictures."""
    by_amounts: frozenset[str] = frozenset()
    """Nodes whose kubelet was derived from amounts, so that its ids have no meaning."""
    pod_names: Mapping[str, str] = {}
    is_complete: bool = True

    @property
    def asked(self) -> int:
        """Pods that were to be placed, those of workloads that fill the nodes included."""
        return sum(entry.placed if entry.asked is None else entry.asked for entry in self.workloads)

    @property
    def placed(self) -> int:
        """Pods that were placed."""
        return sum(entry.placed for entry in self.workloads)

    @property
    def refused(self) -> int:
        """Pods that fit nowhere."""
        return sum(entry.refused for entry in self.workloads)

    @property
    def fits(self) -> bool:
        """Whether every pod has a node, those that run included."""
        is_waiting = self.waits is not None and self.waits.never > 0
        return not (self.error or self.refused or self.displaced or is_waiting) and self.is_complete
