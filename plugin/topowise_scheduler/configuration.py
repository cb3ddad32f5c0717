"""SchedulerConfiguration, the configuration file of `topowise-scheduler serve --config`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Annotated, Final, Literal

import msgspec

from topowise.runtime.config import (
    Configuration,
    Duration,
    Port,
    PortOrNone,
    Section,
    Serving,
    ServingTls,
)
from topowise_scheduler.options.claims.annotation import Alignment
from topowise_scheduler.options.device_affinity.outcomes import Admits
from topowise_scheduler.options.device_affinity.outcomes import Settings as AffinitySettings
from topowise_scheduler.options.device_affinity.preferred_allocation import Rule
from topowise_scheduler.verdicts import strategy_names

_ANYWHERE: Final = frozenset(("", "0.0.0.0", "::"))


class Extender(Section, frozen=True):
    """The server for kube-scheduler. In the same pod as kube-scheduler, loopback without TLS is safest and fastest."""

    address: str = "127.0.0.1"
    """An IP address; addresses other than loopback should have `tls` and a client CA."""
    port: Port = 8080
    """Port of the extender; metrics and health have a separate port."""
    tls: ServingTls | None = None
    """None: plain HTTP."""
    hosts: tuple[str, ...] = ()
    """Host names that callers use for the service, as in their `urlPrefix`. Addresses, localhost, Services of the
    service's namespace (`NAME.NAMESPACE.svc`) and, with TLS, the certificate's names are always allowed. Requests with
    other host names are refused, which prevents DNS rebinding by web pages."""
    score_scale: Literal[10, 100] = 10
    """The best score. kube-scheduler multiplies an extender's scores of 0 to 10 by ten times the extender's weight.
    With 100, scores have a hundred steps, and the weight in kube-scheduler's configuration should be a tenth."""


class ReadOnly(Section, frozen=True):
    """The port for people: `/explain` and the dashboard, without verbs that reserve or bind. It is safe to forward."""

    address: str = "127.0.0.1"
    """An IP address; `kubectl port-forward` reaches loopback too."""
    port: PortOrNone = 8081
    """0 turns the port off, and the dashboard with it."""
    tls: ServingTls | None = None
    """None: plain HTTP."""
    hosts: tuple[str, ...] = ()
    """As `extender.hosts`: host names that browsers use."""


class Grpc(Section, frozen=True):
    """The `Scoring` service (proto/scoring.proto), off without a socket or a port."""

    socket: str = ""
    """Path of a unix socket; empty: none. Every process with access to the socket may call the service."""
    address: str = "127.0.0.1"
    """An IP address for `port`."""
    port: PortOrNone = 0
    """0: no TCP."""
    tls: ServingTls | None = None
    """For the TCP port. None: plaintext."""


class ResourceWeight(Section, frozen=True):
    """The weight of a resource in the score."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class Scoring(Section, frozen=True):
    """How the nodes that fit are scored."""

    strategy: strategy_names.Name = "TightFit"
    """`TightFit` keeps large free parts of NUMA nodes for large pods; `LeastAllocated` spreads and `MostAllocated`
    packs by the NUMA nodes' load, `BalancedAllocation` balances resources (KEP-119); `LeastNUMANodes` and `NUMAAware`
    (Volcano's) prefer placements on few NUMA nodes."""
    resources: tuple[ResourceWeight, ...] = (ResourceWeight(name="cpu"), ResourceWeight(name="memory"))
    """Weights of resources, 1 by default. Only resources that a pod requests count."""
    tie_break: Literal["spread", "pack"] = "pack"
    """`TightFit` only: `spread` prefers the emptier of equally tight nodes, `pack` the fuller node."""

    def __post_init__(self) -> None:
        named = [resource.name for resource in self.resources]
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            raise ValueError(f"resources names {twice[0]!r:.80} more than once, expected a single weight")


class Filter(Section, frozen=True):
    """Options of the filter verb beside the kubelet's verdict."""

    max_admission_time: Duration = Duration(0)
    """A kubelet tries every set of NUMA nodes. With a dozen NUMA nodes this takes minutes for a pod with several
    resources, and the kubelet admits no other pod meanwhile. Nodes with a longer estimated time are refused; 0: no
    limit."""


class Steering(Section, frozen=True):
    """The choice of the NUMA node for pods that request `topowise.io/numa`; docs/how-to/steering.md."""

    enabled: bool = False
    """Needs the right to create, patch, list and watch Leases, and `bindVerb`. A bind may take 8 s: kube-scheduler's
    `httpTimeout` must be 10 s."""


DriverName = Annotated[str, msgspec.Meta(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]


class ResourceClaims(Section, frozen=True):
    """Pods with ResourceClaims (DRA), and their CPUs and memory on the NUMA node of the claimed devices;
    docs/how-to/dra.md."""

    enabled: bool = False
    """Needs the right to list and watch ResourceSlices, ResourceClaims and DeviceClasses, and to get ResourceClaims."""
    drivers: Annotated[tuple[DriverName, ...], msgspec.Meta(max_length=32)] = ()
    """The DRA drivers whose devices this service allocates, in the whole cluster and alone: kube-scheduler is refused.
    Needs `placement.enabled`, and the rights to patch resourceclaims and their status. Empty: kube-scheduler allocates
    all devices."""
    alignment: Alignment = "prefer"
    """For pods without the annotation `topowise.io/claim-alignment`. `prefer`: nodes on which the pod would be near its
    devices come first. `require`: only such nodes fit."""
    namespaces: Mapping[str, Alignment] = msgspec.field(default_factory=dict)
    """`alignment` of single namespaces."""


class WaitingPods(Section, frozen=True):
    """Pods that wait because no kubelet could align them."""

    tell: bool = False
    """On: an event and the condition `topowise.io/Alignable` name the node that is closest to fitting, its missing
    resources and the pods that use them. Written after changes, at most once a minute. Needs the rights to create
    events and to patch pods/status."""


class FitTogether(Section, frozen=True):
    """`/fit-together`: whether several pods fit at the same time; docs/how-to/fit-together.md."""

    most_reserved: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    """The number of pods for which requests may reserve resources, for ten minutes at most; 0: requests are answered
    without reservations. Every client with access to the port may send requests."""


class DevicePlugin(Section, frozen=True):
    """A device plug-in whose preference is known (GetPreferredAllocation)."""

    resource: str
    """The resource name in pods, `nvidia.com/gpu`."""
    rule: Rule
    """`lowest-ids` is sriov-network-device-plugin with `allocationPolicy: packed`, `nvidia` NVIDIA's k8s-device-plugin
    and `nvidia-packed` the same with `sharedDevicesAllocationPolicy: packed`, for GPUs without NVLink or with NVSwitch;
    `any`: the plug-in may take any device."""


class DeviceAffinity(Section, frozen=True):
    """Pods with device affinity (`topowise.io/device-affinity`); docs/how-to/device-affinity.md."""

    required: Admits = "sure"
    """The nodes that `require` admits: `sure` if all devices that the kubelet can take are near enough, `possible` if
    some are."""
    plugins: tuple[DevicePlugin, ...] = ()
    """By resource; plug-ins of other resources may take any device."""

    @property
    def settings(self) -> AffinitySettings:
        """These settings in the form that the ledger uses."""
        return AffinitySettings({plugin.resource: plugin.rule for plugin in self.plugins}, self.required)


class Requeue(Section, frozen=True):
    """kube-scheduler does not notice free resources of a NUMA node, so the leader requeues refused pods by an
    annotation."""

    enabled: bool = True
    """Needs the right to patch pods/status."""


class StartupTaint(Section, frozen=True):
    """The taint `topowise.io/unreported` of new nodes, which keeps pods away until the node is reported;
    docs/how-to/new-nodes.md."""

    enabled: bool = False
    """On: the leader removes the taint from reported nodes. Needs the rights to get and patch nodes."""


class Exporters(Section, frozen=True):
    """The exporters' pods, by which the service recognises new nodes and dead exporters; docs/how-to/new-nodes.md."""

    namespace: str = ""
    """The namespace of the exporters' pods, which have the labels `app.kubernetes.io/part-of: topowise` and
    `app.kubernetes.io/component: exporter`, and of the Leases of steering. Empty: pods of exporters are not recognised,
    and Leases are in the own namespace. Every tenant can set labels, so pods in other namespaces do not count."""
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The `nodeSelector` of the exporters' DaemonSet: only nodes with these labels are to have an exporter."""


class RefusedPods(Section, frozen=True):
    """Pods that a kubelet has refused for their alignment (TopologyAffinityError); docs/how-to/new-nodes.md."""

    delete: bool = False
    """On: the leader deletes such pods if they have a controller, after an event with the reason. Needs the rights to
    delete pods and to create events."""


class Placement(Section, frozen=True):
    """Pods with the scheduling gate `topowise.io/placement`: the leader chooses their nodes, and any kube-scheduler
    binds them; docs/how-to/placement.md."""

    enabled: bool = False
    """Needs the rights to patch and delete pods, limited by ValidatingAdmissionPolicies to what a placement writes."""
    form: Literal["required", "nominated"] = "required"
    """How kube-scheduler learns the node. `required`: by a required node affinity, in one write; nodes that belong to
    an autoscaler's group are nominated all the same. `nominated`: by `status.nominatedNodeName`, which leaves nothing
    in the pod, costs a second write, and lets kube-scheduler choose another node if this one is full."""


class Preemptor(Section, frozen=True):
    """Evicts pods of lower priority for a pod that waits for its alignment only, as kube-scheduler does from 1.38 on;
    docs/how-to/preemption.md."""

    enabled: bool = False
    """On: the leader evicts, within PodDisruptionBudgets. Needs the rights to create pods/eviction and events and to
    patch pods/status."""
    dry_run: bool = False
    """On: only events name the victims and the waiting pod. Needs the right to create events."""
    per_minute: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    """The most evictions per minute, and the most for a single pod."""


class NodeTaint(Section, frozen=True):
    """A taint of the nodes of a group."""

    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class NodeGroup(Section, frozen=True):
    """A node group that may have no node yet. A reported node of the group takes precedence over this declaration."""

    labels: Mapping[str, str]
    """The labels of its nodes, with at least one of `groupLabels`."""
    file: str
    """Path of a NodeResourceTopology of such a node as YAML or JSON, or of a description of the machine: the output of
    `topowise-exporter machine`."""
    kubelet_config: str = ""
    """Path of the KubeletConfiguration, for the description of a machine."""
    kubelet_version: str = ""
    """Version of the kubelet, such as "v1.36.2"; empty: that of the NodeResourceTopology, or the newest known."""
    taints: tuple[NodeTaint, ...] = ()
    """Permanent taints of the nodes."""
    allocatable: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Node allocatable where the file does not give it, such as `pods: "110"` and `nvidia.com/gpu: "8"`."""
    used: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The sum of the requests of the daemon pods, with their number as `pods`."""


class ScaleUp(Section, frozen=True):
    """Nodes for pods that wait only for alignment, from an autoscaler that does not see alignment;
    docs/how-to/autoscaler.md."""

    enabled: bool = False
    """On: the leader creates placeholder pods in `namespace`. Needs the rights to create, list and delete pods there,
    to patch pods/status and to create events; with `karpenter` also to patch nodes."""
    autoscaler: Literal["cluster-autoscaler", "karpenter"] = "cluster-autoscaler"
    """How a placeholder excludes the existing nodes: by their host names, or by a label, because Karpenter ignores pods
    with required terms about host names."""
    namespace: str = ""
    """Namespace of the placeholders; empty: the pod's namespace."""
    group_labels: tuple[str, ...] = (
        "node.kubernetes.io/instance-type",
        "cloud.google.com/gke-nodepool",
        "eks.amazonaws.com/nodegroup",
        "kubernetes.azure.com/agentpool",
        "karpenter.sh/nodepool",
    )
    """Nodes with equal values of all these labels are a group: nodes of a group should have equal hardware and kubelet
    configuration. A node without any of these labels is in no group."""
    declared_groups: tuple[NodeGroup, ...] = ()
    """Groups that are known without a reported node, for groups that scale from zero."""
    per_hour: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 30
    """The most requested nodes in an hour."""
    priority_class: str = "topowise-placeholder"
    """PriorityClass of the placeholders. cluster-autoscaler ignores pods with priorities below -10."""
    image: str = "registry.k8s.io/pause:3.10.1"
    """The image of the placeholders, which never run."""

    def __post_init__(self) -> None:
        if not self.group_labels:
            raise ValueError("groupLabels is empty, expected a label: without one no group of nodes is known")


class ScaleDownGuard(Section, frozen=True):
    """Keeps autoscalers from removing nodes whose pods would not be aligned on another node;
    docs/how-to/autoscaler.md."""

    enabled: bool = False
    """On: the leader annotates such nodes for cluster-autoscaler and Karpenter, for as long as that is true. Needs the
    right to patch nodes."""


class Kueue(Section, frozen=True):
    """Kueue's AdmissionChecks with the controller name `topowise.io/alignment`; docs/how-to/kueue.md."""

    enabled: bool = False
    """On: the leader decides the checks, and each replica reserves for admitted Workloads. Needs the rights to list and
    watch workloads, to list admissionchecks and resourceflavors, and to patch the status of workloads and
    admissionchecks."""


class Volcano(Section, frozen=True):
    """Volcano's extender plug-in as a caller, `/volcano` on the extender's port; docs/how-to/volcano.md."""

    enabled: bool = False
    """Off: there are no such verbs. On: every client with access to the port may reserve resources for pods until
    30 s are over."""
    strategy: strategy_names.Name = "NUMAAware"
    """As `scoring.strategy`, for Volcano's tasks. `NUMAAware` has the formula of Volcano's numa-aware plug-in."""


class Ui(Section, frozen=True):
    """The dashboard, `/ui` on the port for people; docs/how-to/dashboard.md."""

    enabled: bool = False
    """Off: there is no such page. On: every client with access to the port may read names of pods."""


class LeaderElection(Section, frozen=True):
    """Every replica answers requests; only the leader requeues and places pods and runs the other controllers."""

    enabled: bool = False
    """By the Lease `topowise-scheduler-requeue` in the own namespace, or $POD_NAMESPACE. A single replica needs no
    election."""


class SchedulerConfiguration(Configuration, frozen=True, tag="SchedulerConfiguration"):
    """A replica runs beside each kube-scheduler; every replica answers requests."""

    extender: Extender = msgspec.field(default_factory=Extender)
    read_only: ReadOnly = msgspec.field(default_factory=ReadOnly)
    grpc: Grpc = msgspec.field(default_factory=Grpc)
    scoring: Scoring = msgspec.field(default_factory=Scoring)
    filter: Filter = msgspec.field(default_factory=Filter)
    device_affinity: DeviceAffinity = msgspec.field(default_factory=DeviceAffinity)
    steering: Steering = msgspec.field(default_factory=Steering)
    resource_claims: ResourceClaims = msgspec.field(default_factory=ResourceClaims)
    fit_together: FitTogether = msgspec.field(default_factory=FitTogether)
    requeue: Requeue = msgspec.field(default_factory=Requeue)
    waiting_pods: WaitingPods = msgspec.field(default_factory=WaitingPods)
    exporters: Exporters = msgspec.field(default_factory=Exporters)
    startup_taint: StartupTaint = msgspec.field(default_factory=StartupTaint)
    refused_pods: RefusedPods = msgspec.field(default_factory=RefusedPods)
    placement: Placement = msgspec.field(default_factory=Placement)
    preemptor: Preemptor = msgspec.field(default_factory=Preemptor)
    scale_up: ScaleUp = msgspec.field(default_factory=ScaleUp)
    kueue: Kueue = msgspec.field(default_factory=Kueue)
    scale_down_guard: ScaleDownGuard = msgspec.field(default_factory=ScaleDownGuard)
    leader_election: LeaderElection = msgspec.field(default_factory=LeaderElection)
    volcano: Volcano = msgspec.field(default_factory=Volcano)
    ui: Ui = msgspec.field(default_factory=Ui)
    serving: Serving = msgspec.field(default_factory=Serving)
    """Metrics and health."""

    def __post_init__(self) -> None:
        if self.resource_claims.drivers and not self.placement.enabled:
            raise ValueError(
                "resourceClaims.drivers is set and placement.enabled false, expected placement.enabled: true, because "
                "devices are allocated only to pods with the scheduling gate"
            )
        if self.ui.enabled and not self.read_only.port:
            raise ValueError("ui.enabled is true and readOnly.port 0, expected a port for the dashboard")
        listening = {
            "extender": (self.extender.address, self.extender.port),
            "readOnly": (self.read_only.address, self.read_only.port),
            "grpc": (self.grpc.address, self.grpc.port),
            "serving": (self.serving.address, self.serving.port),
        }
        for (first, (address, port)), (second, (other_address, other_port)) in combinations(listening.items(), 2):
            overlap = address == other_address or not _ANYWHERE.isdisjoint((address, other_address))
            if port and port == other_port and overlap:
                raise ValueError(f"{first}.port and {second}.port are both {port}, expected different ports")
