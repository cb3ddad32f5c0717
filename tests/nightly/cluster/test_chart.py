"""The objects on a real API server, and the real kube-scheduler with the rights and configurations that they give.

All tests share an API server. Objects are sent with strict field validation, so a misspelt field is an error.
"""

from __future__ import annotations

import base64
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart_cluster import NAMESPACE, Cluster, Document, eventually, installed, path_of
from forbidden_rights import FOREIGN_ROLES, NEVER_RESOURCES, NEVER_VERBS
from rendered_chart import RECIPES
from sandbox import controlplane
from sandbox.processes import Process, free_ports

ASSETS = controlplane.assets(controlplane.BINARY)
if ASSETS is None:
    pytest.skip("no etcd, kube-apiserver and kube-scheduler in $KUBEBUILDER_ASSETS", allow_module_level=True)
pytestmark = pytest.mark.apiserver

# Their definitions are not ours to have.
FOREIGN = {
    "PodMonitor",
    "ServiceMonitor",
    "PrometheusRule",
    "Issuer",
    "Certificate",
    "SecurityContextConstraints",
}
# The remaining recipes differ by a path, or by kinds that this API server does not have.
ON = ["on/gke", "on/openshift"]


@pytest.fixture(scope="module")
def cluster(default: Any) -> Iterator[Cluster]:
    """With the chart's default objects in it."""
    with installed(default) as cluster:
        for name in ("metal-0", "metal-1"):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            cluster.call("POST", "/api/v1/nodes", node)
            amounts = {"cpu": "32", "memory": "64Gi", "pods": "110"}
            ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]
            status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
            answer = cluster.call("PATCH", f"/api/v1/nodes/{name}/status?fieldManager=test", {**node, "status": status})
            assert answer[0] == 200, answer
        yield cluster


@pytest.mark.parametrize("recipe", [*RECIPES, *ON])
def test_the_api_server_takes_the_objects(cluster: Cluster, render: Any, recipe: str) -> None:
    more = ("networkPolicy.egress.enabled=true", "monitoring.dashboard.enabled=true", "crds.numatopology=true")
    documents = [item for item in render(recipe, *more) if item["kind"] not in FOREIGN]
    # Volcano's own is Volcano's to make.
    for name in {item["metadata"].get("namespace", NAMESPACE) for item in documents} - {NAMESPACE}:
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for document in documents:
        cluster.apply(document, dry_run=True)


def test_the_number_of_replicas_can_be_changed(cluster: Cluster, render: Any) -> None:
    """A server-side apply, as Helm 4 and Argo CD send it: defaulted fields have no manager and stay."""
    for replicas, strategy in ((1, "Recreate"), (2, "RollingUpdate"), (1, "Recreate"), (2, "RollingUpdate")):
        deployment = render("", f"scheduler.replicas={replicas}").named("Deployment", "topowise-scheduler")
        cluster.apply(deployment)
        _, scale = cluster.call("GET", path_of(deployment))
        assert (scale["spec"]["replicas"], scale["spec"]["strategy"]["type"]) == (replicas, strategy)


def test_roles_that_kubernetes_makes_have_what_is_written_down_of_them(cluster: Cluster) -> None:
    for name, expected in FOREIGN_ROLES.items():
        place = "clusterroles" if name.startswith("system:") else "namespaces/kube-system/roles"
        status, role = cluster.call("GET", f"/apis/rbac.authorization.k8s.io/v1/{place}/{name}")
        assert status == 200
        rights = {
            (resource, verb)
            for rule in role["rules"]
            for resource in rule.get("resources", ())
            for verb in rule["verbs"]
            if verb in NEVER_VERBS or resource in NEVER_RESOURCES
        }
        assert rights <= expected, name
        assert not expected or rights, name


def test_an_exporter_writes_for_its_own_node_only(cluster: Cluster) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "exporter-of-metal-0", "namespace": NAMESPACE},
        "spec": {
            "nodeName": "metal-0",
            "serviceAccountName": "topowise-exporter",
            "containers": [{"name": "exporter", "image": "none"}],
        },
    }
    status, created = cluster.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    assert status == 201, created
    token = cluster.token("topowise-exporter", created)

    def publish(name: str, with_token: str) -> tuple[int, Document]:
        report = topology(name, "8")
        return cluster.call("PATCH", f"{path_of(report)}?fieldManager=topowise-exporter", report, token=with_token)

    # A policy takes effect some moments after it was made.
    status, answer = eventually(lambda: (got := publish("metal-1", token))[0] >= 400 and got)
    assert status in (403, 422), answer
    assert "the exporter on node metal-0 may not write the object of node metal-1" in answer["message"]
    assert publish("metal-0", token)[0] in (200, 201)
    assert publish("metal-0", cluster.token("topowise-exporter"))[0] >= 400
    assert publish("metal-1", "")[0] in (200, 201)


def test_only_accounts_that_the_policy_names_write_reports(cluster: Cluster, render: Any) -> None:
    """Two accounts with the same, too wide, role: the policy names the first, the second is a tenant's."""
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    cluster.apply({**rbac, "kind": "ClusterRole", "metadata": {"name": "too-wide"}, "rules": [rule]})
    accounts = ("other-exporter", "tenant")
    for name in accounts:
        meta = {"name": name, "namespace": NAMESPACE}
        cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE} for name in accounts]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "too-wide"}
    binding = {**rbac, "kind": "ClusterRoleBinding", "metadata": {"name": "too-wide"}}
    cluster.apply({**binding, "roleRef": reference, "subjects": subjects})
    documents = render("", f"exporter.onlyWriters={{system:serviceaccount:{NAMESPACE}:other-exporter}}")
    policies = [
        item for item in documents if "AdmissionPolicy" in item["kind"] and "only-writers" in item["metadata"]["name"]
    ]
    assert len(policies) == 2
    report = topology("metal-9", "8")

    def write(account: str, method: str = "PATCH") -> tuple[int, Document]:
        query = f"?fieldManager={account}&force=true" if method == "PATCH" else ""
        body = report if method == "PATCH" else None
        return cluster.call(method, path_of(report) + query, body, token=cluster.token(account))

    assert write("tenant")[0] in (200, 201)
    try:
        for policy in policies:
            cluster.apply(policy)
        status, answer = eventually(lambda: (got := write("tenant"))[0] >= 400 and got)
        assert status == 403
        assert f"system:serviceaccount:{NAMESPACE}:tenant may not write reports of nodes" in answer["message"]
        assert write("tenant", "DELETE")[0] == 403
        assert write("other-exporter")[0] in (200, 201)
        assert write("other-exporter", "DELETE")[0] == 200
    finally:
        for policy in reversed(policies):
            cluster.call("DELETE", path_of(policy))


def test_kube_scheduler_is_of_the_cluster_version(cluster: Cluster, helm: Any, chart: Path, tmp_path: Path) -> None:
    access = f"--kubeconfig={cluster.plane.kubeconfig(tmp_path / 'kubeconfig')}"
    done = helm("install", "third", str(chart), "--dry-run=server", "--namespace=default", access)
    assert done.returncode == 0, done.stderr
    version = cluster.call("GET", "/version")[1]["gitVersion"]
    image = f"registry.k8s.io/kube-scheduler:{version}"
    assert f"image: {image}\n" in done.stdout
    assert f"runs {image}, as the API server is {version};" in done.stdout.partition("NOTES:")[2]


def test_an_upgrade_keeps_certificates_and_definitions_of_every_release(
    cluster: Cluster, helm: Any, chart: Path, tmp_path: Path
) -> None:
    access = f"--kubeconfig={cluster.plane.kubeconfig(tmp_path / 'kubeconfig')}"
    values = f"--values={chart}/recipes/default-scheduler.yaml", "--set=crds.numatopology=true", "--namespace=second"

    def run(*arguments: str) -> None:
        done = helm(*arguments, access)
        assert done.returncode == 0, done.stdout + done.stderr

    def definition(name: str) -> Document:
        return cluster.call("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")[1]

    def certificates() -> list[Document]:
        names = ("tls", "client")
        path = "/api/v1/namespaces/second/secrets/second-topowise-scheduler-extender"
        return [cluster.call("GET", f"{path}-{name}")[1]["data"] for name in names]

    first_definition = definition("noderesourcetopologies.topology.node.k8s.io")
    run("install", "second", str(chart), "--create-namespace", *values)
    second_definition = definition("numatopologies.nodeinfo.volcano.sh")
    assert second_definition["metadata"]["annotations"]["meta.helm.sh/release-name"] == "second"
    first_certificates = certificates()
    run("upgrade", "second", str(chart), *values, "--set=scheduler.extender.weight=6")
    assert certificates() == first_certificates
    run("uninstall", "second", "--namespace=second")
    assert definition("numatopologies.nodeinfo.volcano.sh")["metadata"]["uid"] == second_definition["metadata"]["uid"]
    run("install", "second", str(chart), *values)
    assert certificates() != first_certificates
    run("uninstall", "second", "--namespace=second")
    now = definition("noderesourcetopologies.topology.node.k8s.io")["metadata"]
    assert now["resourceVersion"] == first_definition["metadata"]["resourceVersion"]


def unpack(secret: Document, folder: Path) -> Path:
    folder.mkdir()
    for name, text in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(text))
    return folder


@pytest.fixture(autouse=True)
def release_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service runs outside of a pod, which would show it its namespace."""
    monkeypatch.setenv("POD_NAMESPACE", NAMESPACE)


def start(stack: ExitStack, cluster: Cluster, tmp_path: Path, service: Document, scheduler: Document) -> list[Path]:
    """The service and kube-scheduler as the chart's accounts; their logs."""
    health, secure = free_ports(2)
    access = str(cluster.kubeconfig("topowise-scheduler", tmp_path))
    service = {**service, "client": {"kubeconfig": access}, "serving": {"address": "127.0.0.1", "port": health}}
    scheduler_kubeconfig = str(cluster.kubeconfig("topowise-kube-scheduler", tmp_path))
    scheduler = {**scheduler, "clientConnection": {"kubeconfig": scheduler_kubeconfig}}
    logs = []
    for name, document, arguments, ready in (
        (
            "service",
            service,
            [sys.executable, "-m", "topowise_scheduler", "serve"],
            f"http://127.0.0.1:{health}/readyz",
        ),
        (
            "kube-scheduler",
            scheduler,
            [
                f"{ASSETS}/{controlplane.BINARY}",
                "--bind-address=127.0.0.1",
                f"--secure-port={secure}",
                f"--authentication-kubeconfig={scheduler_kubeconfig}",
                f"--authorization-kubeconfig={scheduler_kubeconfig}",
            ],
            f"https://127.0.0.1:{secure}/healthz",
        ),
    ):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(document))
        log = tmp_path / f"{name}.log"
        stack.enter_context(Process(name, [*arguments, f"--config={file}"], log)).wait_until_ready(ready)
        logs.append(log)
    return logs


def make(cluster: Cluster, name: str, scheduler_name: str) -> None:
    """Makes a pod that a kubelet aligns."""
    requests = {"cpu": "2", "memory": "1Gi"}
    container = {"name": "main", "image": "none", "resources": {"requests": requests, "limits": requests}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": scheduler_name, "containers": [container]},
    }
    status, answer = cluster.call("POST", "/api/v1/namespaces/default/pods", pod)
    assert status == 201, answer


def place(cluster: Cluster, name: str, scheduler_name: str, logs: list[Path]) -> str:
    """Makes a pod and waits until it is bound; the node."""
    make(cluster, name, scheduler_name)
    path = f"/api/v1/namespaces/default/pods/{name}"
    try:
        return str(eventually(lambda: cluster.call("GET", path)[1]["spec"].get("nodeName"), 30))
    except AssertionError:
        pytest.fail("\n".join(log.read_text()[-3000:] for log in logs))


def topology(name: str, *free: str) -> Document:
    """An NRT object with policy single-numa-node and the numbers of free CPUs of its NUMA nodes."""
    cpu = {"name": "cpu", "capacity": "8", "allocatable": "8"}
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "attributes": [{"name": "topologyManagerPolicy", "value": "single-numa-node"}],
        "zones": [
            {"name": f"node-{at}", "type": "Node", "resources": [{**cpu, "available": cpus}]}
            for at, cpus in enumerate(free)
        ],
    }


def test_the_chart_s_own_scheduler_places_a_pod_and_a_report_alone_requeues_another(
    cluster: Cluster, default: Any, tmp_path: Path
) -> None:
    """With the default rights. For the annotation kube-scheduler looks at the pod again, otherwise after 5 minutes."""
    files = default.named("ConfigMap", "topowise-scheduler")["data"]
    service, scheduler = yaml.safe_load(files["scheduler.yaml"]), yaml.safe_load(files["kube-scheduler.yaml"])
    (port,) = free_ports(1)
    service["extender"]["port"] = port
    service["readOnly"] = {"port": 0}
    scheduler["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{port}"
    own = scheduler["profiles"][0]["schedulerName"]
    path = "/api/v1/namespaces/default/pods/requeued"
    try:
        with ExitStack() as stack:
            logs = start(stack, cluster, tmp_path, service, scheduler)
            assert place(cluster, "own", own, logs) in ("metal-0", "metal-1")
            leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
            holders = {lease["metadata"]["name"] for lease in cluster.call("GET", leases)[1]["items"]}
            assert holders == {"topowise-scheduler", "topowise-scheduler-requeue"}
            for name in ("metal-0", "metal-1"):
                cluster.apply(topology(name, "1"))
            make(cluster, "requeued", own)
            eventually(lambda: cluster.call("GET", path)[1]["status"].get("conditions"), 60)
            assert "nodeName" not in cluster.call("GET", path)[1]["spec"]
            cluster.apply(topology("metal-1", "8"))
            # Long before kube-scheduler tries again by itself.
            assert eventually(lambda: cluster.call("GET", path)[1]["spec"].get("nodeName"), 120) == "metal-1"
        assert "topowise.io/requeued" in cluster.call("GET", path)[1]["metadata"]["annotations"]
        for log in logs:
            assert "forbidden" not in log.read_text()
    finally:
        for name in ("metal-0", "metal-1"):
            cluster.call("DELETE", path_of(topology(name)))


def test_a_scheduler_elsewhere_places_a_pod_over_mutual_tls(cluster: Cluster, render: Any, tmp_path: Path) -> None:
    objects = render("default-scheduler", "scheduler.tls.ipAddresses={127.0.0.1}", "scheduler.extender.bind=true")
    service = yaml.safe_load(objects.named("ConfigMap", "topowise-scheduler")["data"]["scheduler.yaml"])
    server = unpack(objects.named("Secret", "topowise-scheduler-extender-tls"), tmp_path / "server")
    client = unpack(objects.named("Secret", "topowise-scheduler-extender-client"), tmp_path / "client")
    (port,) = free_ports(1)
    files = {name: str(server / Path(path).name) for name, path in service["extender"]["tls"].items()}
    service["extender"] = {"address": "127.0.0.1", "port": port, "tls": files}
    service["leaderElection"]["enabled"] = False
    service["readOnly"] = {"port": 0}
    extender = {
        **controlplane.extender(f"https://127.0.0.1:{port}"),
        # Not ignorable here, or a failure would not be seen.
        "enableHTTPS": True,
        "tlsConfig": {
            "caFile": str(client / "ca.crt"),
            "certFile": str(client / "tls.crt"),
            "keyFile": str(client / "tls.key"),
            "serverName": f"topowise-scheduler-extender.{NAMESPACE}.svc",
        },
    }
    scheduler = {
        "apiVersion": controlplane.API_VERSION,
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "profiles": [{"schedulerName": "remote"}],
        "extenders": [extender],
    }
    with ExitStack() as stack:
        logs = start(stack, cluster, tmp_path, service, scheduler)
        assert place(cluster, "remote", "remote", logs) in ("metal-0", "metal-1")
        nobody = ssl.create_default_context(cafile=str(client / "ca.crt"))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=nobody)
        )
        with pytest.raises((urllib.error.URLError, OSError)):
            opener.open(f"https://127.0.0.1:{port}/explain?pod=default/remote", timeout=5)
