"""How lists and maps of built-in kinds merge, as far as nodes, pods and what surrounds them need it.

In Go these are struct tags (`patchMergeKey`, `listType`, `listMapKey`, `mapType`) spread over k8s.io/api. A field not
named here is replaced whole if it is a list and merged if it is a map.
"""

from __future__ import annotations

from typing import Final

ASSOCIATIVE: Final[dict[str, tuple[str, ...]]] = {
    "addresses": ("type",),
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "hostAliases": ("ip",),
    "hostIPs": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "podIPs": ("ip",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Lists of objects identified by these fields; `ports` has two forms, see `fields`."""

SETS: Final = frozenset({"finalizers"})
"""Lists of plain values that are sets."""

ATOMIC_MAPS: Final = frozenset({"selector", "nodeSelector", "labelSelector", "matchLabels", "resourceFieldRef"})

STRATEGIC: Final[dict[str, str]] = {name: keys[0] for name, keys in ASSOCIATIVE.items() if keys} | {"taints": "key"}
"""Merge keys of strategic merge patch. Taints merge by key there, yet are atomic for server-side apply."""
