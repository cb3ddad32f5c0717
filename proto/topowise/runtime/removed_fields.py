"""Fields that earlier versions of the configuration files had, and what takes their place.

The error for such a field says this, and docs/how-to/upgrade.md has the same table. A field that only moves into the
code needs no action but its deletion from the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CLIENT: Final = {
    "client.context": "the current context of the kubeconfig",
    "client.timeout": "always 10 s",
}

REMOVED: Final[Mapping[str, Mapping[str, str]]] = {
    "ExporterConfiguration": {
        **_CLIENT,
    },
    "SchedulerConfiguration": {
        **_CLIENT,
        "defragmenter": (
            "`kubectl topowise defrag` names the pods to evict, also as JSON; a pod that must not wait takes the "
            "capacity by its priority (preemptor)"
        ),
        "karmada": (
            "karmada-scheduler-estimator, which divides replicas by sums; in each member cluster topowise refuses "
            "nodes that would not align a pod"
        ),
    },
}
"""Kind -> path of the field or section -> what takes its place, in Markdown."""


def instead(kind: str, path: str) -> str:
    """Returns what takes the place of the field at this dotted path, "" if no earlier version had the field."""
    return REMOVED.get(kind, {}).get(path, "")
