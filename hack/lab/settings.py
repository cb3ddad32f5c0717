"""Policies, scopes and options of the kubelet, each a series of its own."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]


def _topology(policy: str, scope: str, **options: str) -> Json:
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return {
        "topologyManagerPolicy": policy,
        "topologyManagerScope": scope,
        "topologyManagerPolicyOptions": named,
    }


def _cpus(**options: str) -> Json:
    return {"cpuManagerPolicyOptions": {name.replace("_", "-"): value for name, value in options.items()}}


# In the order in which they run: what differs most first, if time is short.
SETTINGS: Final[dict[str, Json]] = {
    "restricted, container": _topology("restricted", "container"),
    "single-numa-node, container": _topology("single-numa-node", "container"),
    "single-numa-node, pod": _topology("single-numa-node", "pod"),
    "best-effort, container": _topology("best-effort", "container"),
    "restricted, pod, prefer-closest-numa-nodes": _topology("restricted", "pod", prefer_closest_numa_nodes="true"),
    "restricted, container, full-pcpus-only": {
        **_topology("restricted", "container"),
        **_cpus(full_pcpus_only="true"),
    },
    "best-effort, pod, distribute-cpus-across-numa": {
        **_topology("best-effort", "pod"),
        **_cpus(distribute_cpus_across_numa="true"),
    },
    "none, container": _topology("none", "container"),
}
