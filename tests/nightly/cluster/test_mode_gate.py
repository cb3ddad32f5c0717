"""Mode gate on a real API server: the service with the rights of its account, and a kube-scheduler that knows nothing.

The commands of docs/how-to/install.md, "By the gate": the chart, a label for the namespace, a pod.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart_cluster import NAMESPACE, Cluster, Document, eventually, installed
from sandbox import controlplane
from sandbox.processes import Process, free_ports
from topowise.placement import ENABLED, GATE, PLACED_ON

if controlplane.assets(controlplane.BINARY) is None:
    pytest.skip("no etcd, kube-apiserver and kube-scheduler in $KUBEBUILDER_ASSETS", allow_module_level=True)
pytestmark = pytest.mark.apiserver

PODS = "/api/v1/namespaces/training/pods"
# Free CPUs of their NUMA nodes: by sums a pod with 6 CPUs fits on both, by NUMA nodes only on metal-1.
NODES = {"metal-0": ("4", "4"), "metal-1": ("8", "0")}


@pytest.fixture
def objects(render: Any) -> Any:
    return render("", "scheduler.mode=gate")


@pytest.fixture
def cluster(objects: Any) -> Iterator[Cluster]:
    """With the chart, two nodes and their reports, and a namespace that asks for the gate."""
    with installed(objects) as cluster:
        labels = {GATE: ENABLED}
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training", "labels": labels}})
        for name, free in NODES.items():
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
            ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]
            cluster.call("POST", "/api/v1/nodes", node)
            status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
            cluster.call("PATCH", f"/api/v1/nodes/{name}/status?fieldManager=test", {**node, "status": status})
            cluster.apply(report(name, *free))
        yield cluster


def report(name: str, *free: str) -> Document:
    cpu = {"name": "cpu", "capacity": "8", "allocatable": "8"}
    zones = [
        {"name": f"node-{at}", "type": "Node", "resources": [{**cpu, "available": cpus}]}
        for at, cpus in enumerate(free)
    ]
    policy = {"name": "topologyManagerPolicy", "value": "single-numa-node"}
    head = {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology"}
    return {**head, "metadata": {"name": name}, "attributes": [policy], "zones": zones}


@pytest.fixture
def service(cluster: Cluster, objects: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The service with the chart's configuration and its account's token; its log."""
    monkeypatch.setenv("POD_NAMESPACE", NAMESPACE)
    health, extender = free_ports(2)
    settings = yaml.safe_load(objects.named("ConfigMap", "topowise-scheduler")["data"]["scheduler.yaml"])
    settings["extender"]["port"], settings["readOnly"] = extender, {"port": 0}
    settings["serving"] = {"address": "127.0.0.1", "port": health}
    settings["client"] = {"kubeconfig": str(cluster.kubeconfig("topowise-scheduler", tmp_path))}
    file, log = tmp_path / "service.yaml", tmp_path / "service.log"
    file.write_text(yaml.safe_dump(settings))
    with Process("service", [sys.executable, "-m", "topowise_scheduler", "serve", f"--config={file}"], log) as process:
        process.wait_until_ready(f"http://127.0.0.1:{health}/readyz")
        yield log


def make(cluster: Cluster, cpus: str, name: str) -> Document:
    amounts = {"cpu": cpus, "memory": "1Gi"}
    container = {"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
    status, answer = cluster.call("POST", PODS, pod)
    assert status == 201, answer
    return answer


def test_a_managed_clusters_kube_scheduler_binds_what_the_service_places(
    cluster: Cluster, service: Path, tmp_path: Path
) -> None:
    # A policy takes effect some moments after it was made.
    eventually(lambda: "schedulingGates" in cluster.call("POST", f"{PODS}?dryRun=All", probe())[1]["spec"])
    with controlplane.StockScheduler(cluster.plane, {}, tmp_path / "kube-scheduler"):
        assert make(cluster, "6", "trainer")["spec"]["schedulingGates"] == [{"name": GATE}]
        trainer = eventually(lambda: bound(cluster, "trainer"), 60)
        assert trainer["spec"]["nodeName"] == trainer["metadata"]["annotations"][PLACED_ON] == "metal-1"
        make(cluster, "7", "too-large")
        make(cluster, "2", "after")
        assert eventually(lambda: bound(cluster, "after"), 60)["spec"]["nodeName"] in NODES
        waiting = cluster.call("GET", f"{PODS}/too-large")[1]
        assert waiting["status"]["conditions"][0]["reason"] == "SchedulingGated"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    assert [lease["metadata"]["name"] for lease in cluster.call("GET", leases)[1]["items"]] == [
        "topowise-scheduler-requeue"
    ]
    binding = {"metadata": {"name": "too-large"}, "target": {"kind": "Node", "name": "metal-0"}}
    token = cluster.token("topowise-scheduler")
    assert cluster.call("POST", f"{PODS}/too-large/binding", binding, token=token)[0] == 403
    assert "forbidden" not in service.read_text()


def probe() -> Document:
    return {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}


def bound(cluster: Cluster, name: str) -> Document | None:
    pod = cluster.call("GET", f"{PODS}/{name}")[1]
    return pod if pod["spec"].get("nodeName") else None
