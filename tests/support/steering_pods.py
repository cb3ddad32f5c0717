"""Pods that request markers, for tests of steering."""

from __future__ import annotations

from typing import Any

from scheduling import pod
from topowise.steering import RESOURCE


def marked(name: str, *cpus: str, **fields: Any) -> dict[str, Any]:
    """Returns a pod with a container, and a marker for it, for each number of CPUs; two CPUs by default."""
    amounts = [{"cpu": count, "memory": "1Gi", RESOURCE: "1"} for count in cpus or ("2",)]
    containers = [{"name": f"c{at}", "resources": {"requests": it, "limits": it}} for at, it in enumerate(amounts)]
    return pod(name, containers=containers, **fields)


def requiring(name: str, numa: int | str, *cpus: str, **fields: Any) -> dict[str, Any]:
    """Returns the same with a required NUMA node."""
    return marked(name, *cpus, annotations={"topowise.io/numa-node": str(numa)}, **fields)
