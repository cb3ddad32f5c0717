"""Markers for pods that opt in: the chart's MutatingAdmissionPolicy on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from chart_cluster import Cluster, Document, eventually, installed
from sandbox import controlplane

if controlplane.assets() is None:
    pytest.skip("no etcd and kube-apiserver in $KUBEBUILDER_ASSETS", allow_module_level=True)
pytestmark = pytest.mark.apiserver

MARKER = "topowise.io/numa"
OPTED_IN = {"topowise.io/add-markers": "true"}
ON = ("steering.enabled=true", "steering.addMarkers=true")
SIZES = {"cpu": "1", "memory": "1Gi"}


@pytest.fixture(scope="module")
def cluster(render: Any) -> Iterator[Cluster]:
    """An API server with the policy, and the namespaces "default" and "opted-in"."""
    with installed(item for item in render("", *ON) if item["kind"].startswith("MutatingAdmissionPolicy")) as cluster:
        for name, labels in (("opted-in", OPTED_IN), ("default", {})):
            cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        eventually(lambda: limits(cluster, made(cluster, pod("first"), "opted-in")) == [{**SIZES, MARKER: "1"}])
        eventually(lambda: MARKER in limits(cluster, made(cluster, pod("first", labels=OPTED_IN)))[0])
        yield cluster


def container(name: str = "c", **resources: Any) -> Document:
    return {"name": name, "image": "none", "resources": resources}


def pod(name: str, *containers: Document, labels: Any = None, **fields: Any) -> Document:
    spec = {"containers": list(containers) or [container(limits=SIZES)], **fields}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def made(cluster: Cluster, document: Document, namespace: str = "default") -> Document:
    """Returns the pod as the API server admits it."""
    status, answer = cluster.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", document)
    assert status == 201, answer
    return answer


def limits(cluster: Cluster, admitted: Document, field: str = "containers") -> list[Document]:
    """Returns the limits of the containers, which equal the requests of markers."""
    resources = [container["resources"] for container in admitted["spec"][field]]
    assert all(it.get("requests", {}).get(MARKER) == it.get("limits", {}).get(MARKER) for it in resources), (
        "the API server requires equal amounts of an extended resource"
    )
    return [it.get("limits", {}) for it in resources]


@pytest.mark.parametrize(
    ("labels", "namespace", "is_marked"),
    [
        ({}, "opted-in", True),
        (OPTED_IN, "default", True),
        (OPTED_IN, "opted-in", True),
        ({}, "default", False),
        ({"topowise.io/add-markers": "false"}, "default", False),
    ],
)
def test_a_namespace_or_a_pod_opts_in(cluster: Cluster, labels: Document, namespace: str, is_marked: bool) -> None:
    admitted = made(
        cluster, pod("a", container("x", limits=SIZES), container("y", limits=SIZES), labels=labels), namespace
    )
    assert limits(cluster, admitted) == [{**SIZES, MARKER: "1"} if is_marked else SIZES] * 2
    assert admitted["status"]["qosClass"] == "Guaranteed"


def test_init_containers_and_sidecars_get_markers(cluster: Cluster) -> None:
    init = [container("first", limits=SIZES), {**container("sidecar", limits=SIZES), "restartPolicy": "Always"}]
    admitted = made(cluster, pod("a", labels=OPTED_IN, initContainers=init))
    assert limits(cluster, admitted, "initContainers") == [{**SIZES, MARKER: "1"}] * 2
    assert limits(cluster, admitted) == [{**SIZES, MARKER: "1"}]
    assert [it["name"] for it in admitted["spec"]["initContainers"]] == ["first", "sidecar"]


def test_the_amount_that_a_pod_requests_stays(cluster: Cluster) -> None:
    requested = {**SIZES, MARKER: "2"}
    assert limits(cluster, made(cluster, pod("a", container(limits=requested), labels=OPTED_IN))) == [requested]


def test_containers_without_limits_get_no_marker(cluster: Cluster) -> None:
    containers = [container("x", requests=SIZES), container("y", limits=SIZES), container("z")]
    admitted = made(cluster, pod("a", *containers, labels=OPTED_IN))
    assert limits(cluster, admitted) == [{}, {**SIZES, MARKER: "1"}, {}]
    assert [it["name"] for it in admitted["spec"]["containers"]] == ["x", "y", "z"]


def test_pods_of_a_deployment_get_no_second_marker(cluster: Cluster) -> None:
    """The policy is asked again for the pod that it has changed."""
    admitted = made(cluster, pod("a", labels=OPTED_IN))
    again = {"metadata": {"name": "b", "labels": OPTED_IN}, "spec": {"containers": admitted["spec"]["containers"]}}
    assert limits(cluster, made(cluster, again)) == [{**SIZES, MARKER: "1"}]
