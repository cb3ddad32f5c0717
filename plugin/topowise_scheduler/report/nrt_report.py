"""The report of a node, as read from any exporter's NodeResourceTopology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from topowise.attributes.pci_devices import Located
from topowise.errors import TopowiseError
from topowise.fingerprint import Method
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.masks import Mask
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, KubeletVersion

Precision = Literal["exact", "counts"]

PodName = tuple[str, str]
"""Namespace and name. A pod that the exporter could not identify has an empty namespace, and its UID as the name."""

PageSizes = tuple[str, ...]
"""Hugepages resources in a Node's allocatable, sorted. The kubelet knows their sizes, even without any such pages."""

Placements = Mapping[str, Placement]
"""By container. "" is the pod itself: pod-level resources (KEP-5526), or CPUs that a finished init container left."""


class ReportError(TopowiseError):
    """A part of the object that cannot be used: the part, its value and the expected value."""


class FreeResources(msgspec.Struct, frozen=True):
    """The free resources in the kubelet's own accounting, correct even if some owners of allocations are unknown.

    `cpus` are CPUs available for exclusive use, None without a static CPU manager. `memory` is free bytes by type and
    node position, None if unreported. `assignments` and `cells` are by position, None if unreadable for the exporter.
    """

    cpus: CpuSet | None = None
    memory: Mapping[str, tuple[int | None, ...]] = {}
    assignments: tuple[int, ...] | None = None
    cells: tuple[Mask, ...] | None = None


class PlaceholderPod(msgspec.Struct, frozen=True):
    """A placeholder pod that never ends. It requests and has the unavailable amounts of a zone."""

    uid: str
    requests: Mapping[str, int]
    placements: Placements


class Source(Protocol):
    """The texts from which `Report.empty` was built, shared between reports."""

    def empty(self, version: KubeletVersion, page_sizes: PageSizes) -> Kubelet | None:
        """Returns the node without pods, None if a kubelet of this version does not start there."""
        ...


class Report(msgspec.Struct, frozen=True):
    """A node as its NRT describes it.

    `version` is the object's resourceVersion. `empty` is the node without pods. Reports of equal hardware and
    configuration share it, so fork it before a change. `problems` has a line for each unused part of the object: the
    part, its value, the expected value, and the consequence.

    An exact report has `held`, the allocations by pod, and `free`; a report of counts has `placeholders` instead. CPU
    ids and device ids of a report of counts are synthetic.
    """

    name: str
    version: str
    precision: Precision
    empty: Kubelet
    held: Mapping[PodName, Placements] = {}
    free: FreeResources | None = None
    placeholders: tuple[PlaceholderPod, ...] = ()
    places: Mapping[str, Located] = {}
    """PCI paths by device id, for the devices with a known path; shared between reports like `empty`."""
    offsets: Mapping[int, tuple[int, ...]] | None = None
    """numaplacement: NUMA node id -> offsets into the sorted hashes of all containers (topowise.numaplacement)."""
    fingerprint: str = ""
    """Digest of the pods that the report accounts for, "" if there is none."""
    fingerprint_method: Method = "all"
    admitting: frozenset[PodName] = frozenset()
    """Pods whose admission may still be in progress: they may have more allocations than `held` shows."""
    unconfirmed: tuple[str, ...] = ()
    """Reasons why the report is the last confirmed state (attributes.confirmation); empty for the current state."""
    boot_id: str = ""
    """The machine's boot ID at the time of the report, "" if unreported."""
    pcie_roots: str = ""
    """The NUMA nodes of PCIe roots as text (attributes.pcie_roots), "" if unreported."""
    problems: tuple[str, ...] = ()
    kubelet: KubeletVersion = NEWEST_RECORDED
    """The kubelet version whose decisions `empty` makes."""
    reported_version: str = ""
    """The kubelet's version in the object, "" if unreported."""
    node_version: str = ""
    """The kubelet's version in the Node at the time of reading, "" for an unknown Node (reader.py)."""
    page_sizes: PageSizes = ()
    """The hugepages that the Node listed at the time of reading."""
    version_problem: str = ""
    """The entry of `problems` about the two versions."""
    source: Source | None = None
    marks: bytes = b""
    """Hashes of the texts behind `held`, for the next report of the node (exact.py)."""
    zone_marks: bytes = b""
    """Hashes of the texts of the zones, in the order of `source`. Empty if the order differs, or if the report lacks
    free resources: then the next report is read without regard to this one."""
    over_budget: str = ""
    """The limit of the object that the object exceeds, "" if none. Then no other field of the report has content."""
    knows_policy: bool = True
    """False if the object names a policy that no kubelet has; an entry of `problems` has the name."""

    @property
    def policy(self) -> str:
        """Returns the Topology Manager policy for display, "unknown" if the object does not name a valid policy."""
        return self.empty.settings.topology.policy if self.knows_policy else "unknown"

    @property
    def certainty(self) -> str:
        """Returns the certainty that the node's kubelet decides as `kubelet`; "unknown" without a reported version."""
        return self.kubelet.certainty if self.reported_version or self.node_version else "unknown"

    @property
    def lists_ended(self) -> bool:
        """Returns whether the kubelet lists ended pods with their memory, up to their deletion or the next
        admission."""
        # Up to 1.33 (kubernetes#132028).
        return dict(self.kubelet.gates).get("KubeletPodResourcesListUseActivePods") == "absent"

    @property
    def exact_for(self) -> str:
        """Returns the kubelet version for display, with "?" if not proven; "" without a reported version."""
        marks = {"unknown": "", "recorded": self.kubelet.name}
        return marks.get(self.certainty, f"{self.kubelet.name}?")

    @property
    def remark(self) -> str:
        """Returns why the model is not proven for the kubelet; "" if it is proven, or without a reported version."""
        return "" if self.certainty == "unknown" else self.kubelet.remark
