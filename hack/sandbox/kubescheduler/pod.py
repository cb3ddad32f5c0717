"""A pod as the informer keeps it: its JSON as it came, which is what an extender is sent, and what is used of it."""

from __future__ import annotations

import msgspec

from topowise import pods
from topowise_scheduler.verdicts import kube_scheduler


class PodInfo(msgspec.Struct, frozen=True, gc=False):
    """A pod with its effective requests, in milli-CPU for cpu."""

    raw: bytes
    pod: kube_scheduler.Pod
    needs: pods.Needs

    @property
    def requests(self) -> pods.Amounts:
        return self.needs.requests

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def key(self) -> str:
        """namespace/name"""
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"

    @property
    def path(self) -> str:
        """Of the object in the API."""
        return f"/api/v1/namespaces/{self.pod.metadata.namespace}/pods/{self.pod.metadata.name}"

    @property
    def node(self) -> str:
        """Where it is assigned, "" if nowhere."""
        return self.pod.spec.nodeName

    @property
    def priority(self) -> int:
        return self.pod.spec.priority or 0

    @property
    def nominated(self) -> str:
        """Where preemption makes room for it, "" if nowhere."""
        return "" if self.pod.status is None else self.pod.status.nominatedNodeName

    @property
    def started(self) -> str:
        """Returns the start time in RFC 3339, which orders victims of equal priority."""
        return ("" if self.pod.status is None else self.pod.status.startTime) or ""

    def condition(self) -> pods.Condition | None:
        """PodScheduled."""
        conditions = () if self.pod.status is None else self.pod.status.conditions or ()
        return next((condition for condition in conditions if condition.type == "PodScheduled"), None)


def decode(raw: bytes | msgspec.Raw) -> PodInfo:
    """Raises msgspec.DecodeError, and ParseError for a malformed quantity."""
    pod = kube_scheduler.decode(raw)
    return PodInfo(bytes(raw), pod, pods.needs(pod))
