"""CRDs in place of Kueue's, which keep all fields, as the types of Kueue are not what is tested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def all_of() -> Iterator[dict[str, Any]]:
    """Yields the CRDs of what an admission check reads and writes."""
    for plural, kind, scope in (
        ("workloads", "Workload", "Namespaced"),
        ("admissionchecks", "AdmissionCheck", "Cluster"),
        ("resourceflavors", "ResourceFlavor", "Cluster"),
    ):
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {
            "name": "v1beta1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}},
        }
        yield {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{plural}.kueue.x-k8s.io",
                # The API server demands it for this group name.
                "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
            },
            "spec": {
                "group": "kueue.x-k8s.io",
                "names": {"plural": plural, "kind": kind, "listKind": f"{kind}List", "singular": kind.lower()},
                "scope": scope,
                "versions": [version],
            },
        }
