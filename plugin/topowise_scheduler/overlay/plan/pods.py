"""Pods of plans by their amounts, for callers without manifests."""

from __future__ import annotations

from collections.abc import Mapping

from topowise.pods import Resources
from topowise_scheduler.verdicts.kube_scheduler import Container, Metadata, Pod, Spec


def pod_of(name: str, amounts: Mapping[str, str], *, namespace: str = "default") -> Pod:
    """Returns a Guaranteed pod with a container that requests these quantities by resource."""
    limits = dict(amounts)
    container = Container("main", Resources(requests={**limits}, limits={**limits}))
    return Pod(Metadata(name=name, namespace=namespace), Spec(containers=(container,)))
