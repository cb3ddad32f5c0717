"""The fields of v1.Pod that constrain where other pods, or the pod itself, may be.

They are decoded apart from `topowise.pods`, because only a service that places pods needs them of every pod. A pod of
ten kilobytes takes about 10 us.
"""

from __future__ import annotations

from typing import Any

import msgspec

from topowise.pods import PodResourceClaim, SchedulingGroup
from topowise_scheduler.verdicts.kube_scheduler import (
    ContainerPort,
    NodeAffinity,
    PodAffinity,
    Toleration,
    TopologySpreadConstraint,
)


class Metadata(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None
    deletionTimestamp: str | None = None


class Container(msgspec.Struct, frozen=True, gc=False):
    ports: tuple[ContainerPort, ...] | None = None
    restartPolicy: str | None = None


class Affinity(msgspec.Struct, frozen=True, gc=False):
    nodeAffinity: NodeAffinity | None = None
    podAffinity: PodAffinity | None = None
    podAntiAffinity: PodAffinity | None = None


class Spec(msgspec.Struct, frozen=True, gc=False):
    nodeName: str = ""
    nodeSelector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topologySpreadConstraints: tuple[TopologySpreadConstraint, ...] | None = None
    containers: tuple[Container, ...] | None = None
    initContainers: tuple[Container, ...] | None = None
    volumes: tuple[dict[str, Any], ...] | None = None
    resourceClaims: tuple[PodResourceClaim, ...] | None = None
    schedulingGroup: SchedulingGroup | None = None
    workloadRef: Any = None


class Status(msgspec.Struct, frozen=True, gc=False):
    phase: str = ""


class Pod(msgspec.Struct, frozen=True, gc=False):
    """A pod, pending or assigned."""

    metadata: Metadata
    spec: Spec
    status: Status | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether the pod has ended; kube-scheduler does not list such pods."""
        return self.status is not None and self.status.phase in ("Succeeded", "Failed")


decode = msgspec.json.Decoder(Pod).decode
