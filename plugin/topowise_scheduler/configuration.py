"""SchedulerConfiguration, the file that `topowise-scheduler serve --config` reads."""

from __future__ import annotations

from datetime import time
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
from topowise_scheduler import declared_shapes, device_affinity, strategy_names

_ANYWHERE: Final = frozenset(("", "0.0.0.0", "::"))


class Extender(Section, frozen=True):
    """Where kube-scheduler finds us. Beside it in one pod, loopback without TLS is the safest and the fastest."""

    address: str = "127.0.0.1"
    """An IP address; anything but loopback should come with `tls` and a client CA."""
    port: Port = 8080
    """Port of the extender; metrics and health have their own."""
    tls: ServingTls | None = None
    """None: plain HTTP."""
    hosts: tuple[str, ...] = ()
    """Names by which callers call us, as in their `urlPrefix`. Addresses, localhost and the Services of the own
    namespace (`NAME.NAMESPACE.svc`) are known already; under TLS the certificate tells. Others are refused, because a
    web page can give our address a name of its own."""
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1 << 16)] = 64 << 20
    """A larger request is refused: 5,000 full Node objects are about 40 MB."""
    score_scale: Literal[10, 100] = 10
    """The best score. kube-scheduler multiplies an extender's 0..10 by ten times its weight; with 100 every step of a
    hundred counts, and the extender's weight in kube-scheduler's configuration should be a tenth."""

    predictions: bool = True
    """Pods that are bound through us get an annotation with what they are expected to get (`topowise.io/predicted`)."""


class ReadOnly(Section, frozen=True):
    """The port for people: `/explain` and the dashboard, and nothing that books or binds. It is the one to forward."""

    address: str = "127.0.0.1"
    """An IP address; `kubectl port-forward` reaches loopback too."""
    port: PortOrNone = 8081
    """0 turns the port off, and the dashboard with it."""
    tls: ServingTls | None = None
    """None: plain HTTP."""
    hosts: tuple[str, ...] = ()
    """As `extender.hosts`: names in the address bar."""


class Grpc(Section, frozen=True):
    """The `Scoring` service (proto/scoring.proto), off unless a socket or a port is named."""

    socket: str = ""
    """Path of a unix socket; empty: none. Whoever may open it may ask."""
    address: str = "127.0.0.1"
    """An IP address for `port`."""
    port: PortOrNone = 0
    """0: no TCP."""
    tls: ServingTls | None = None
    """For the TCP port. None: plaintext."""


class ResourceWeight(Section, frozen=True):
    """A resource that counts for the score."""

    name: str
    weight: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1


class Scoring(Section, frozen=True):
    """Which of the nodes that fit is better."""

    strategy: strategy_names.Name = "TightFit"
    """`TightFit` keeps the largest holes whole, so that large pods find room later; `LeastAllocated` spreads and
    `MostAllocated` packs by the NUMA nodes' load, `BalancedAllocation` keeps resources in step (KEP-119);
    `LeastNUMANodes` and `NUMAAware` (Volcano's) prefer placements on few NUMA nodes."""
    resources: tuple[ResourceWeight, ...] = (ResourceWeight(name="cpu"), ResourceWeight(name="memory"))
    """Weights of resources; one that is not listed weighs 1, and only what a pod asks for counts at all."""
    tie_break: Literal["spread", "pack"] = "pack"
    """`TightFit` only: of equally tight nodes the emptier, or the fuller one."""
    max_numa_nodes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    """`LeastNUMANodes` only: the number of NUMA nodes that scores 0, where a node does not tell its own
    (`topologyManagerMaxNUMANodes`)."""

    def __post_init__(self) -> None:
        named = [resource.name for resource in self.resources]
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            raise ValueError(f"resources names {twice[0]!r:.80} more than once, expected one weight for each")


class Reservations(Section, frozen=True):
    """Pods are expected on the node that looked best until they are bound, so that the next one finds it taken."""

    enabled: bool = True
    """Off: two pods decided within one bind may be sent to the same room; then let kube-scheduler bind through us."""
    ttl: PositiveDuration = PositiveDuration(30)
    """For how long a pod is expected that nobody binds."""


class Filter(Section, frozen=True):
    """What keeps a pod from a node that its kubelet would admit it to, and which of the others are named."""

    max_admission_time: Duration = Duration(0)
    """A kubelet tries every set of NUMA nodes, and with a dozen of them takes minutes for a pod of several resources;
    meanwhile it admits no other. Pods that are estimated to take longer are kept away; 0: none are."""
    best_nodes: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """kube-scheduler is told of so many of the nodes that fit, the best by `scoring`, and scores no others; 0: of all.
    With 1 it scores none at all, which is fastest. Pods with preferences of their own get all names, and so do pods
    that are asked about again. Ours has to be the last of kube-scheduler's extenders then."""


class WaitingPods(Section, frozen=True):
    """Pods that wait because no NUMA node has room for them."""

    tell: bool = False
    """On: an event and the condition `topowise.io/Alignable` say which node comes nearest, what it lacks and who is in
    the way, when that changes and at most once a minute. Needs the rights to create events and to patch pods/status."""


class FitTogether(Section, frozen=True):
    """`/fit-together`: whether some pods fit at once; docs/how-to/fit-together.md."""

    most_reserved: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    """For so many pods room may be kept on request, for ten minutes at the most; 0: questions are answered, and nothing
    is kept. Whoever reaches the port may ask."""


class DevicePlugin(Section, frozen=True):
    """A device plug-in of which it is known what it prefers (GetPreferredAllocation)."""

    resource: str
    """As pods name it, `nvidia.com/gpu`."""
    rule: device_affinity.Rule
    """`lowest-ids` is sriov-network-device-plugin with `allocationPolicy: packed`, `nvidia` NVIDIA's k8s-device-plugin
    and `nvidia-packed` the same with `sharedDevicesAllocationPolicy: packed`, of GPUs without NVLink or with NVSwitch;
    `any` is one that may take any device."""


class DeviceAffinity(Section, frozen=True):
    """Pods that wish devices near each other (`topowise.io/device-affinity`); docs/how-to/device-affinity.md."""

    required: device_affinity.Admits = "sure"
    """What `require` is content with: `sure` is a node on which whatever the kubelet takes is near enough, `possible`
    one on which something is."""
    plugins: tuple[DevicePlugin, ...] = ()
    """By resource; of one that is not listed the plug-in may take any device."""

    @property
    def settings(self) -> device_affinity.Settings:
        """The same for those who judge."""
        return device_affinity.Settings({plugin.resource: plugin.rule for plugin in self.plugins}, self.required)


class Requeue(Section, frozen=True):
    """kube-scheduler does not see that a NUMA node has got room, so a pod refused for it is requeued by an
    annotation."""

    enabled: bool = True
    """Needs the right to patch pods/status."""
    interval: PositiveDuration = PositiveDuration(0.1)
    """How often changed nodes are tried against the pods that wait."""
    per_second: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    """At most so many pods are requeued in a second, the most important first."""


class StartupTaint(Section, frozen=True):
    """The taint `topowise.io/unreported`, with which new nodes register so that they get no pods before they are
    reported; docs/how-to/new-nodes.md."""

    enabled: bool = False
    """On: it is removed from nodes that are reported. Needs the rights to get and patch nodes."""


class RefusedPods(Section, frozen=True):
    """Pods that a kubelet has refused for their alignment (TopologyAffinityError); docs/how-to/new-nodes.md."""

    delete: bool = False
    """On: those that have a controller are deleted, after an event has told why. Needs the rights to delete pods and
    to create events."""


class Nominator(Section, frozen=True):
    """Pods that wait are told their node before kube-scheduler comes to them (`status.nominatedNodeName`), so that it
    need not search; docs/how-to/nominator.md."""

    enabled: bool = False
    """Needs the right to patch the status of pods."""
    scheduler_names: tuple[str, ...] = ("topowise-scheduler",)
    """Pods with one of these as `spec.schedulerName`."""
    when: Literal["burst", "always"] = "burst"
    """`burst`: only while ten pods and more wait, and the next one has for 0.3 s; a pod that comes alone is placed by
    kube-scheduler as ever."""
    preferences: Literal["respect", "ignore"] = "respect"
    """kube-scheduler does not score nodes for a pod that is nominated. `respect`: pods that declare preferences
    (preferred affinity, `ScheduleAnyway`) are left to it, and so are nodes with untolerated `PreferNoSchedule`
    taints."""
    ahead: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1000
    """So many pods at most are nominated and not bound yet."""
    writes: Annotated[int, msgspec.Meta(ge=1, le=32)] = 8
    """So many are written at once."""


class Preemptor(Section, frozen=True):
    """Evicts less important pods for a pod that waits for its alignment alone, which kube-scheduler does from 1.38 on;
    docs/how-to/preemption.md."""

    enabled: bool = False
    """On: the leader evicts, within PodDisruptionBudgets. Needs the rights to create pods/eviction and events and to
    patch pods/status."""
    dry_run: bool = False
    """Only events tell who would be evicted for whom. Needs the right to create events."""
    per_minute: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    """At most so many pods are evicted in a minute, and so many for one pod."""
    patience: Duration = Duration(10)
    """For so long a pod has to wait before others are evicted for it."""


class Defragmenter(Section, frozen=True):
    """Keeps room in one piece for declared shapes of pods by moving others; docs/how-to/defrag.md."""

    enabled: bool = False
    """On: the leader evicts pods, within PodDisruptionBudgets, so that their owners' new ones are placed elsewhere.
    Needs the rights to create pods/eviction and events."""
    dry_run: bool = False
    """Only events tell who would be moved. Needs the right to create events."""
    shapes: tuple[dict[str, str | int], ...] = ()
    """What pods of one container ask for, and `count`, for how many of them at once there should be room:
    `{cpu: 16, memory: 64Gi, nvidia.com/gpu: 4, count: 2}`."""
    quiet_hours: tuple[str, ...] = ()
    """Pods are moved only then, in UTC, such as "22:00-06:00"; empty: at any time."""
    per_hour: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    """At most so many pods are evicted in an hour."""
    max_moves: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3
    """Room that takes more moves than this is not worth them."""
    priority: int = 0
    """Pods of a higher one are not moved."""

    def __post_init__(self) -> None:
        names = [str(declared_shapes.shape(one)) for one in self.shapes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"shapes has {twice[0]!r:.80} more than once, expected one count for each")
        for text in self.quiet_hours:
            declared_shapes.window(text)

    def is_quiet(self, moment: time) -> bool:
        """Whether pods may be moved at this time of day in UTC."""
        windows = [declared_shapes.window(text) for text in self.quiet_hours]
        return not windows or any(moment in one for one in windows)


class Volcano(Section, frozen=True):
    """Volcano's extender plug-in as a caller, `/volcano` on the extender's port; docs/how-to/volcano.md."""

    enabled: bool = False
    """Off: there are no such verbs. On, whoever reaches the port may book room for pods until `reservations.ttl` is
    over."""
    strategy: strategy_names.Name = "NUMAAware"
    """As `scoring.strategy`, for Volcano's tasks. `NUMAAware` has the formula of Volcano's own plug-in."""
    weight: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1
    """Scores are 0 to 100 times this. Volcano adds them as they are to those of its plug-ins; 0: none."""


class Ui(Section, frozen=True):
    """The dashboard, `/ui` on the port for people; docs/how-to/dashboard.md."""

    enabled: bool = False
    """Off: there is no such page, and nothing is kept for it. On, whoever reaches the port may read names of pods."""
    decisions: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 200
    """So many of the last decisions are kept, in memory alone."""


class LeaderElection(Section, frozen=True):
    """Every replica answers; only the leader requeues and nominates pods, and changes anything else in the cluster
    unasked."""

    enabled: bool = False
    """With one replica there is nothing to elect."""
    lease_name: str = "topowise-scheduler-requeue"
    """Name of the Lease; another one than that of the kube-scheduler beside it."""
    lease_namespace: str = ""
    """Empty: the pod's own namespace."""
    identity: str = ""
    """Who this replica is; empty: the host name with a random end."""


class SchedulerConfiguration(Configuration, frozen=True, tag="SchedulerConfiguration"):
    """One replica beside each kube-scheduler; all may answer."""

    extender: Extender = msgspec.field(default_factory=Extender)
    read_only: ReadOnly = msgspec.field(default_factory=ReadOnly)
    grpc: Grpc = msgspec.field(default_factory=Grpc)
    scoring: Scoring = msgspec.field(default_factory=Scoring)
    filter: Filter = msgspec.field(default_factory=Filter)
    device_affinity: DeviceAffinity = msgspec.field(default_factory=DeviceAffinity)
    reservations: Reservations = msgspec.field(default_factory=Reservations)
    fit_together: FitTogether = msgspec.field(default_factory=FitTogether)
    requeue: Requeue = msgspec.field(default_factory=Requeue)
    waiting_pods: WaitingPods = msgspec.field(default_factory=WaitingPods)
    startup_taint: StartupTaint = msgspec.field(default_factory=StartupTaint)
    refused_pods: RefusedPods = msgspec.field(default_factory=RefusedPods)
    nominator: Nominator = msgspec.field(default_factory=Nominator)
    preemptor: Preemptor = msgspec.field(default_factory=Preemptor)
    defragmenter: Defragmenter = msgspec.field(default_factory=Defragmenter)
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
        for (one, (address, port)), (other, (its_address, its_port)) in combinations(listening.items(), 2):
            meet = address == its_address or not _ANYWHERE.isdisjoint((address, its_address))
            if port and port == its_port and meet:
                raise ValueError(f"{one}.port and {other}.port are both {port}, expected one for each")
