"""The pods of the demo. Each pod shows a decision that a NUMA-aware scheduler has to get right."""

from __future__ import annotations

from typing import Any

from demo.cluster import SCHEDULER

Json = dict[str, Any]


def _pod(name: str, story: str, *containers: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": {"demo.topowise.io/story": story}},
        "spec": {"containers": list(containers), "schedulerName": SCHEDULER, "priority": 0},
    }


def _guaranteed(name: str, **amounts: str) -> Json:
    """Returns a container whose requests equal its limits; keys are resource names."""
    return {
        "name": name,
        "image": "registry.k8s.io/pause:3.10",
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
    }


def _burstable(name: str, **amounts: str) -> Json:
    return {"name": name, "image": "registry.k8s.io/pause:3.10", "resources": {"requests": dict(amounts)}}


PODS: tuple[Json, ...] = (
    _pod(
        "web", "burstable, so no kubelet aligns it: it may go anywhere", _burstable("nginx", cpu="500m", memory="256Mi")
    ),
    _pod(
        "cache",
        "whole CPUs and memory from one NUMA node",
        _guaranteed("redis", cpu="6", memory="24Gi"),
    ),
    _pod(
        "router",
        "CPUs, 2 MiB pages and a virtual function of a NIC, all on the NIC's node",
        _guaranteed("dpdk", cpu="8", memory="4Gi", **{"hugepages-2Mi": "512Mi", "intel.com/e810_vf": "1"}),
    ),
    _pod(
        "trainer",
        "two containers, a GPU each: they may be on different NUMA nodes",
        _guaranteed("rank-0", cpu="6", memory="20Gi", **{"nvidia.com/gpu": "1"}),
        _guaranteed("rank-1", cpu="6", memory="20Gi", **{"nvidia.com/gpu": "1"}),
    ),
    _pod(
        "database",
        "needs more CPUs than a NUMA node of the small machines has",
        _guaranteed("postgres", cpu="22", memory="48Gi"),
    ),
    _pod(
        "database-2",
        "equal to database: only the second socket is free for it",
        _guaranteed("postgres", cpu="22", memory="48Gi"),
    ),
    _pod("giant", "no NUMA node of any machine is large enough", _guaranteed("solver", cpu="40", memory="16Gi")),
)
