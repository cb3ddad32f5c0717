"""What a report is, whoever it is from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from topowise.attributes.places import Located
from topowise.errors import TopowiseError
from topowise.fingerprint import Method
from topowise_scheduler.kubelet import Kubelet, Placement
from topowise_scheduler.kubelet.cpu_topology import CpuSet
from topowise_scheduler.kubelet.masks import Mask
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, KubeletVersion

Precision = Literal["exact", "counts"]

PodName = tuple[str, str]
"""Namespace and name. A pod that the exporter could not name has no namespace, and its uid for a name."""

PageSizes = tuple[str, ...]
"""Hugepage resources that a Node lists in its allocatable, sorted; its kubelet knows them, even if there are none."""

Placements = Mapping[str, Placement]
"""By container. "" is the pod itself: its pod-level resources (KEP-5526), or what a finished init container left it."""


class ReportError(TopowiseError):
    """A part of the object that cannot be used: the thing, its value and what was expected."""


class FreeResources(msgspec.Struct, frozen=True):
    """The kubelet's own word on what is free, which is right even where the holders are not all known.

    `cpus` can still be given exclusively, None with CPU manager none. `memory` is free bytes by type and node position,
    None where it is not known; `assignments` and `cells` are by position, None if the exporter could not read them.
    """

    cpus: CpuSet | None = None
    memory: Mapping[str, tuple[int | None, ...]] = {}
    assignments: tuple[int, ...] | None = None
    cells: tuple[Mask, ...] | None = None


class Occupant(msgspec.Struct, frozen=True):
    """A made-up pod that holds what is not available in one zone, and requests as much; it never ends."""

    uid: str
    requests: Mapping[str, int]
    placements: Placements


class Source(Protocol):
    """What `Report.empty` is made of; the texts are shared between reports."""

    def empty(self, version: KubeletVersion, page_sizes: PageSizes) -> Kubelet | None:
        """The node with a kubelet of this version, None if that would not start."""
        ...


class Report(msgspec.Struct, frozen=True):
    """One node as its NRT tells it.

    `version` is the object's resourceVersion. `empty` is the node with nothing held; it is shared between reports of
    equal hardware and configuration, so fork it before use. `problems` has a line for each part of the object that
    cannot be used: the thing, its value, what was expected, and what happens instead.

    `held` and `free` are exact only, `occupants` are what counts have instead. CPU ids and device ids of counts are
    made up.
    """

    name: str
    version: str
    precision: Precision
    empty: Kubelet
    held: Mapping[PodName, Placements] = {}
    free: FreeResources | None = None
    occupants: tuple[Occupant, ...] = ()
    places: Mapping[str, Located] = {}
    """Where devices are on the PCI buses, by id, of those of which it is known; shared between reports like `empty`."""
    offsets: Mapping[int, tuple[int, ...]] | None = None
    """numaplacement: NUMA node id -> offsets into the sorted hashes of all containers (topowise.placement)."""
    fingerprint: str = ""
    """Digest of the pods that are accounted for; "" if there is none to compare with."""
    fingerprint_method: Method = "all"
    admitting: frozenset[PodName] = frozenset()
    """Pods whose admission the exporter has not seen to end: they may hold more than `held` has of them."""
    unconfirmed: tuple[str, ...] = ()
    """Why this is the last true report and not what the kubelet says now (attributes.doubts); empty if it is."""
    boot_id: str = ""
    """Of the boot of the machine in which it was made, "" if it does not tell."""
    problems: tuple[str, ...] = ()
    kubelet: KubeletVersion = NEWEST_RECORDED
    """Whose decisions `empty` makes: what `precision` is exact for."""
    reported_version: str = ""
    """The kubelet's version as the object has it, "" if it does not."""
    node_version: str = ""
    """The same as its Node had it when the report was read, "" if the Node was not known (versions.py)."""
    page_sizes: PageSizes = ()
    """What its Node listed then."""
    version_problem: str = ""
    """That one of `problems` which is about these two."""
    source: Source | None = None
    marks: bytes = b""
    """Of what `held` was read from, for the next report of the node (container_allocations.py)."""
    zone_marks: bytes = b""
    """Of the texts of the zones, which are those of `source` in their order. None if they are not, and if the report
    does not tell all that is free: then it can only be read, and put on a node, as if there had been none before."""
    over_budget: str = ""
    """Why the object is more than a report may be, "" if it is not: nothing else of the report says anything then."""
    knows_policy: bool = True
    """False if the object names a policy that no kubelet has; one of `problems` has the word."""

    @property
    def policy(self) -> str:
        """The Topology Manager's policy for people, "unknown" if the object does not tell one that there is."""
        return self.empty.settings.topology.policy if self.knows_policy else "unknown"

    @property
    def certainty(self) -> str:
        """How sure it is that the node's kubelet decides as `kubelet`; "unknown" if nobody has reported its version."""
        return self.kubelet.certainty if self.reported_version or self.node_version else "unknown"

    @property
    def lists_ended(self) -> bool:
        """Whether its kubelet lists pods that have ended with the memory they had, until they are deleted or the next
        pod is admitted (up to 1.33, kubernetes#132028)."""
        return dict(self.kubelet.gates).get("KubeletPodResourcesListUseActivePods") == "absent"

    @property
    def exact_for(self) -> str:
        """The kubelet in a word for people, with "?" if it is not proven; "" if nobody has reported its version."""
        marks = {"unknown": "", "recorded": self.kubelet.name}
        return marks.get(self.certainty, f"{self.kubelet.name}?")

    @property
    def remark(self) -> str:
        """Why the answers for its kubelet are not proven, "" if they are or nobody has reported which it is."""
        return "" if self.certainty == "unknown" else self.kubelet.remark
