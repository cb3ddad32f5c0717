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
    PositiveDuration,
    Section,
    Serving,
    ServingTls,
)
from topowise.steering import MOST_SECONDS
from topowise_scheduler.options import device_affinity
from topowise_scheduler.options.claims.annotation import Alignment
from topowise_scheduler.verdicts import strategy_names

# Of fit-together's reservations.
_LONGEST_HOLD_S: Final = 600.0
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
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1 << 16)] = 64 << 20
    """A larger request is refused: 5,000 full Node objects are about 40 MB."""
    score_scale: Literal[10, 100] = 10
    """The best score. kube-scheduler multiplies an extender's scores of 0 to 10 by ten times the extender's weight.
    With 100, scores have a hundred steps, and the weight in kube-scheduler's configuration should be a tenth."""

    predictions: bool = True
    """Pods that the service binds get an annotation with their predicted allocation (`topowise.io/predicted`)."""


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
    max_numa_nodes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    """`LeastNUMANodes` only: the number of NUMA nodes that scores 0, for nodes that do not report their
    `topologyManagerMaxNUMANodes`."""
    distance_by_option: bool = False
    """`LeastNUMANodes` only: near NUMA nodes score higher only where the kubelet's option `prefer-closest-numa-nodes`
    has an effect, as the proposal intends (KEP-454). Off: on every node, as in the code of scheduler-plugins."""

    def __post_init__(self) -> None:
        named = [resource.name for resource in self.resources]
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            raise ValueError(f"resources names {twice[0]!r:.80} more than once, expected a single weight")


class Reservations(Section, frozen=True):
    """Reserves resources for a pod on the best node until the pod is bound, so that later pods do not take them."""

    enabled: bool = True
    """Off: kube-scheduler may send two pods to the same resources before the first pod is bound. Then the service
    should have `bindVerb`."""
    ttl: PositiveDuration = PositiveDuration(30)
    """The reservation of a pod that is not bound ends after this time."""


class Filter(Section, frozen=True):
    """Options of the filter verb beside the kubelet's verdict."""

    max_admission_time: Duration = Duration(0)
    """A kubelet tries every set of NUMA nodes. With a dozen NUMA nodes this takes minutes for a pod with several
    resources, and the kubelet admits no other pod meanwhile. Nodes with a longer estimated time are refused; 0: no
    limit."""
    merge_equal_nodes: bool = True
    """The filter verb names one node of each set of nodes that kube-scheduler's default score plug-ins score equally,
    the best by `scoring`. Pods with preferences, volumes or claims, and pods of repeated requests, get all nodes. Off:
    kube-scheduler has score plug-ins of its own, or another extender after this service."""
    best_nodes: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """The filter verb returns only this number of fitting nodes, the best by `scoring`; 0: all. With 1, kube-scheduler
    scores no nodes, which is fastest. Pods with preferences and pods of repeated requests always get all nodes. The
    service must be the last of kube-scheduler's extenders then."""


class Steering(Section, frozen=True):
    """The choice of the NUMA node for pods that request `topowise.io/numa`; docs/how-to/steering.md."""

    enabled: bool = False
    """Needs the right to create, patch, list and watch Leases, and `bindVerb`."""
    namespace: str = "topowise-system"
    """Namespace of the Leases `topowise-steering-NODE`, as in the exporters' configuration."""
    wait: PositiveDuration = PositiveDuration(2)
    """Time for the answer of the node's marker plug-in, and for the end of the request before. The bind of a pod with a
    marker may wait for both and for two such binds to the node before it: set kube-scheduler's `httpTimeout` to four
    times this value at least."""
    expiry: PositiveDuration = PositiveDuration(10)
    """The label ends after this time, at most 30 s, if its kubelet has not admitted the pod."""

    def __post_init__(self) -> None:
        if self.expiry > MOST_SECONDS:
            raise ValueError(f"expiry is {self.expiry:g} s, expected at most {MOST_SECONDS:g} s")
        if self.expiry < 2 * self.wait:
            raise ValueError(
                f"expiry is {self.expiry:g} s and wait is {self.wait:g} s, expected an expiry of twice wait at least: "
                "the label would end before the kubelet has the pod"
            )


class ResourceClaims(Section, frozen=True):
    """Pods with ResourceClaims (DRA), and their CPUs and memory on the NUMA node of the claimed devices;
    docs/how-to/dra.md."""

    enabled: bool = False
    """Needs the right to list and watch ResourceSlices, ResourceClaims and DeviceClasses, and to get ResourceClaims."""
    alignment: Alignment = "prefer"
    """For pods without the annotation `topowise.io/claim-alignment`. `prefer`: nodes on which the pod would be near its
    devices come first. `require`: only such nodes fit."""
    namespaces: Mapping[str, Alignment] = msgspec.field(default_factory=dict)
    """`alignment` of single namespaces."""
    scheduler_minor: Annotated[int, msgspec.Meta(ge=0, le=99)] = 0
    """The minor version of kube-scheduler, 36 for 1.36, whose allocator is predicted; 0: that of the API server."""
    scheduler_feature_gates: Mapping[str, bool] = msgspec.field(default_factory=dict)
    """Feature gates of kube-scheduler that are not at their default, such as `DRAListTypeAttributes: true`."""


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
    rule: device_affinity.Rule
    """`lowest-ids` is sriov-network-device-plugin with `allocationPolicy: packed`, `nvidia` NVIDIA's k8s-device-plugin
    and `nvidia-packed` the same with `sharedDevicesAllocationPolicy: packed`, for GPUs without NVLink or with NVSwitch;
    `any`: the plug-in may take any device."""


class DeviceAffinity(Section, frozen=True):
    """Pods with device affinity (`topowise.io/device-affinity`); docs/how-to/device-affinity.md."""

    required: device_affinity.Admits = "sure"
    """The nodes that `require` admits: `sure` if all devices that the kubelet can take are near enough, `possible` if
    some are."""
    plugins: tuple[DevicePlugin, ...] = ()
    """By resource; plug-ins of other resources may take any device."""

    @property
    def settings(self) -> device_affinity.Settings:
        """These settings in the form that the ledger uses."""
        return device_affinity.Settings({plugin.resource: plugin.rule for plugin in self.plugins}, self.required)


class Requeue(Section, frozen=True):
    """kube-scheduler does not notice free resources of a NUMA node, so the leader requeues refused pods by an
    annotation."""

    enabled: bool = True
    """Needs the right to patch pods/status."""
    interval: PositiveDuration = PositiveDuration(0.1)
    """The interval in which changed nodes are checked against waiting pods."""
    per_second: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    """The most pods that are requeued per second, by priority."""


class StartupTaint(Section, frozen=True):
    """The taint `topowise.io/unreported` of new nodes, which keeps pods away until the node is reported;
    docs/how-to/new-nodes.md."""

    enabled: bool = False
    """On: the leader removes the taint from reported nodes. Needs the rights to get and patch nodes."""


class Exporters(Section, frozen=True):
    """The exporters' pods, by which the service recognises new nodes and dead exporters; docs/how-to/new-nodes.md."""

    namespace: str = ""
    """The namespace of the exporters' pods. Empty: pods of exporters are not recognised. Every tenant can set labels,
    so pods in other namespaces do not count."""
    pod_labels: Mapping[str, str] = msgspec.field(
        default_factory=lambda: {"app.kubernetes.io/part-of": "topowise", "app.kubernetes.io/component": "exporter"}
    )
    """The labels of the exporters' pods."""
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The `nodeSelector` of the exporters' DaemonSet: only nodes with these labels are to have an exporter."""
    first_report: Duration = Duration(120)
    """Time since the creation of a node for which pods to align wait for the first report of the node; 0: no time."""
    grace: PositiveDuration = PositiveDuration(120)
    """Time for which an exporter may be not Ready, or its report may lack a running pod, before the node is
    unconfirmed. It should be longer than an update of the exporter takes on a node."""

    def __post_init__(self) -> None:
        if not self.pod_labels:
            raise ValueError("podLabels is empty, expected a label: every pod of the namespace would be an exporter")


class RefusedPods(Section, frozen=True):
    """Pods that a kubelet has refused for their alignment (TopologyAffinityError); docs/how-to/new-nodes.md."""

    delete: bool = False
    """On: the leader deletes such pods if they have a controller, after an event with the reason. Needs the rights to
    delete pods and to create events."""


class Nominator(Section, frozen=True):
    """Nominates waiting pods before kube-scheduler schedules them (`status.nominatedNodeName`), so that kube-scheduler
    checks a single node; docs/how-to/nominator.md."""

    enabled: bool = False
    """Needs the right to patch the status of pods."""
    scheduler_names: tuple[str, ...] = ("topowise-scheduler",)
    """The values of `spec.schedulerName` whose pods are nominated."""
    when: Literal["burst", "always"] = "burst"
    """`burst`: only while at least ten pods wait and the next pod has waited for 0.3 s; kube-scheduler places single
    pods as usual."""
    preferences: Literal["respect", "ignore"] = "respect"
    """kube-scheduler does not score nodes for a nominated pod. `respect`: pods with preferences (preferred affinity,
    `ScheduleAnyway`) are not nominated, and nodes with untolerated `PreferNoSchedule` taints are not used."""
    ahead: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1000
    """The most pods that are nominated but not bound."""
    writes: Annotated[int, msgspec.Meta(ge=1, le=32)] = 8
    """The most concurrent writes."""


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
    patience: Duration = Duration(10)
    """The time that a pod must wait before pods are evicted for it."""


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
    patience: Duration = Duration(60)
    """The time that a pod must wait only for alignment, or a Workload of Kueue for a place of its pods, before a node
    is requested for it."""
    time_limit: PositiveDuration = PositiveDuration(900)
    """The time from a request until the node is reported; after that the request has failed."""
    hold: PositiveDuration = PositiveDuration(120)
    """The time for which a new node is reserved for the pods it was requested for, from its first report."""
    in_flight: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    """The most requested nodes that do not exist yet."""
    per_group: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    """The same for a group. Until a requested node of a group has helped in the last day, it is 1."""
    per_hour: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 30
    """The most requested nodes in an hour."""
    back_off: PositiveDuration = PositiveDuration(1800)
    """The pause of a group after a requested node that did not help or did not come; doubled after each further."""
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
    most_nodes: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    """The most nodes that are annotated at the same time."""


class Kueue(Section, frozen=True):
    """Kueue's AdmissionChecks with the controller name `topowise.io/alignment`; docs/how-to/kueue.md."""

    enabled: bool = False
    """On: the leader decides the checks, and each replica reserves for admitted Workloads. Needs the rights to list and
    watch workloads, to list admissionchecks and resourceflavors, and to patch the status of workloads and
    admissionchecks."""
    api_version: Literal["v1beta1", "v1beta2"] = "v1beta1"
    """The version of Kueue's API."""
    hold: PositiveDuration = PositiveDuration(120)
    """The time for which the pods of an admitted Workload are reserved until kube-scheduler asks for them; at most ten
    minutes."""
    most_reserved: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    """The number of pods for which checks may reserve resources at the same time; further checks are Retry."""

    def __post_init__(self) -> None:
        if self.hold > _LONGEST_HOLD_S:
            raise ValueError(f"hold is {self.hold:g} s, expected at most {_LONGEST_HOLD_S:g} s")


class Volcano(Section, frozen=True):
    """Volcano's extender plug-in as a caller, `/volcano` on the extender's port; docs/how-to/volcano.md."""

    enabled: bool = False
    """Off: there are no such verbs. On: every client with access to the port may reserve resources for pods until
    `reservations.ttl` ends."""
    strategy: strategy_names.Name = "NUMAAware"
    """As `scoring.strategy`, for Volcano's tasks. `NUMAAware` has the formula of Volcano's numa-aware plug-in."""
    weight: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1
    """Scores are 0 to 100 times this weight. Volcano adds them to its plug-ins' scores; 0: no scores."""


class Ui(Section, frozen=True):
    """The dashboard, `/ui` on the port for people; docs/how-to/dashboard.md."""

    enabled: bool = False
    """Off: there is no such page. On: every client with access to the port may read names of pods."""
    decisions: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 200
    """The number of recent decisions in memory."""


class LeaderElection(Section, frozen=True):
    """Every replica answers requests; only the leader requeues and nominates pods and runs the other controllers."""

    enabled: bool = False
    """A single replica needs no election."""
    lease_name: str = "topowise-scheduler-requeue"
    """Name of the Lease; it must differ from the Lease of kube-scheduler in the same pod."""
    lease_namespace: str = ""
    """Empty: the pod's namespace."""
    identity: str = ""
    """The identity of this replica; empty: the host name with a random suffix."""


class SchedulerConfiguration(Configuration, frozen=True, tag="SchedulerConfiguration"):
    """A replica runs beside each kube-scheduler; every replica answers requests."""

    extender: Extender = msgspec.field(default_factory=Extender)
    read_only: ReadOnly = msgspec.field(default_factory=ReadOnly)
    grpc: Grpc = msgspec.field(default_factory=Grpc)
    scoring: Scoring = msgspec.field(default_factory=Scoring)
    filter: Filter = msgspec.field(default_factory=Filter)
    device_affinity: DeviceAffinity = msgspec.field(default_factory=DeviceAffinity)
    reservations: Reservations = msgspec.field(default_factory=Reservations)
    steering: Steering = msgspec.field(default_factory=Steering)
    resource_claims: ResourceClaims = msgspec.field(default_factory=ResourceClaims)
    fit_together: FitTogether = msgspec.field(default_factory=FitTogether)
    requeue: Requeue = msgspec.field(default_factory=Requeue)
    waiting_pods: WaitingPods = msgspec.field(default_factory=WaitingPods)
    exporters: Exporters = msgspec.field(default_factory=Exporters)
    startup_taint: StartupTaint = msgspec.field(default_factory=StartupTaint)
    refused_pods: RefusedPods = msgspec.field(default_factory=RefusedPods)
    nominator: Nominator = msgspec.field(default_factory=Nominator)
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
