"""What a thief of a token can write: every write of the service passes, and every other write is refused.

The rules are the chart's own with every feature on, on a real API server. The writes that must pass are made by the
service's own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from chart_cluster import NAMESPACE, Cluster, Document
from sandbox import controlplane
from topowise.kube.api import MERGE_PATCH

ASSETS = controlplane.assets()
if ASSETS is None:
    pytest.skip("no etcd and kube-apiserver in $KUBEBUILDER_ASSETS", allow_module_level=True)
pytestmark = pytest.mark.apiserver

SYSTEM = "/api/v1/namespaces/kube-system/pods"


def pod(name: str, namespace: str, **more: Any) -> Document:
    container = {"name": "main", "image": "registry.example/main:1", **more.pop("container", {})}
    spec = {"containers": [container], **more.pop("spec", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, **more}, "spec": spec}


@pytest.fixture(scope="module")
def cluster(default: Any) -> Iterator[Cluster]:
    """With the objects of the chart's default values."""
    assert ASSETS is not None
    with controlplane.ControlPlane(ASSETS) as plane:
        made = Cluster(plane)
        order = {"Namespace": 0, "CustomResourceDefinition": 1}
        for document in sorted(default, key=lambda one: order.get(one["kind"], 2)):
            made.apply(document)
        yield made


def test_the_image_of_a_privileged_pod_cannot_be_changed_with_the_default_values(cluster: Cluster) -> None:
    privileged = pod("proxy", "kube-system", container={"securityContext": {"privileged": True}})
    assert cluster.call("POST", SYSTEM, privileged)[0] == 201
    patch = {"spec": {"containers": [{"name": "main", "image": "registry.example/theft:1"}]}}
    kind = "application/strategic-merge-patch+json"
    for path in (f"{SYSTEM}/proxy", f"{SYSTEM}/proxy/status"):
        cluster.call("PATCH", path, patch, token=cluster.token("topowise-scheduler"), content_type=kind)
    image = cluster.call("GET", f"{SYSTEM}/proxy")[1]["spec"]["containers"][0]["image"]
    assert image == "registry.example/main:1"
