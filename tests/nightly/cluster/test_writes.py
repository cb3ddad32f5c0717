"""What a thief of a token can write: every write of the service passes, and every other write is refused.

The rules are the chart's own with every feature on, on a real API server. The writes that must pass are made by the
service's own code.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kueue_definitions
from chart_cluster import NAMESPACE, Cluster, Document, eventually, installed
from sandbox import controlplane
from scheduling import Service, exact, kubelet
from scheduling import pod as waiting_pod
from topowise.kube import credentials
from topowise.kube.api import JSON, MERGE_PATCH, Api
from topowise.kube.lease import Elector, Timing
from topowise_scheduler.configuration import ScaleUp as ScaleUpSettings
from topowise_scheduler.controllers import events, evictions, known_nodes
from topowise_scheduler.controllers.admission_checks import AdmissionChecks
from topowise_scheduler.controllers.kueue_objects import CONTROLLER
from topowise_scheduler.controllers.nomination import nominate
from topowise_scheduler.controllers.refused_pods import RefusedPods
from topowise_scheduler.controllers.requeue import REQUEUED_ANNOTATION, Requeuer
from topowise_scheduler.controllers.scale_down_guard import ScaleDownGuard
from topowise_scheduler.controllers.scale_up import ScaleUp
from topowise_scheduler.controllers.scale_up_demand import Demand
from topowise_scheduler.controllers.startup_taint import StartupTaint
from topowise_scheduler.controllers.waiting_pods import CONDITION, WaitingPods
from topowise_scheduler.controllers.workload_pods import WorkloadPods
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.options.steering.leases import NodeSteering
from topowise_scheduler.overlay.overlay import NodeCopy
from topowise_scheduler.overlay.scale_up import node_groups, placeholders
from topowise_scheduler.overlay.scale_up.node_groups import Profile
from topowise_scheduler.serve.extender.binding import Binder
from topowise_scheduler.verdicts.kube_scheduler import Node

if controlplane.assets() is None:
    pytest.skip("no etcd and kube-apiserver in $KUBEBUILDER_ASSETS", allow_module_level=True)
pytestmark = pytest.mark.apiserver

EVERY_FEATURE = (
    "scheduler.config.startupTaint.enabled=true",
    "scheduler.config.refusedPods.delete=true",
    "scheduler.config.waitingPods.tell=true",
    "scheduler.config.preemptor.enabled=true",
    "scheduler.config.scaleDownGuard.enabled=true",
    "scheduler.config.scaleUp.enabled=true",
    "scheduler.config.scaleUp.autoscaler=karpenter",
    "scheduler.config.kueue.enabled=true",
    "exporter.config.podPlacements=true",
    "steering.enabled=true",
)
EMPTY = NodeCopy((), like="", node=Node(""))
PODS = "/api/v1/namespaces/default/pods"
SYSTEM = "/api/v1/namespaces/kube-system/pods"
NODE = "/api/v1/nodes/metal-0"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
KUEUE = "/apis/kueue.x-k8s.io/v1beta1"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
STRATEGIC = "application/strategic-merge-patch+json"
OURS = {"key": "topowise.io/unreported", "effect": "NoSchedule"}
THEIRS = {"key": "example.com/theirs", "effect": "NoSchedule"}
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "uid-set", "controller": True}
REFUSED = {"phase": "Failed", "reason": "TopologyAffinityError", "message": "Resources cannot be allocated"}
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
IMAGE = "registry.example/main:1"


OWN_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CONTAINER_FIELDS = ("image", "command", "env", "volumeMounts", "resources")
PLACED = "topowise-placeholder-placed"
PLACEHOLDERS = placeholders.Template(
    NAMESPACE, "registry.k8s.io/pause:3.10.1", "topowise-placeholder", "cluster-autoscaler"
)


class Write(NamedTuple):
    """A request, and words of the refusal."""

    method: str
    path: str
    body: Document | None
    refusal: str
    content_type: str = MERGE_PATCH
    account: str = "topowise-scheduler"


def status(name: str, metadata: Document, changed: Document, refusal: str) -> Write:
    return Write("PATCH", f"{PODS}/{name}/status", {"metadata": metadata, "status": changed}, refusal)


def node(refusal: str, **changed: Any) -> Write:
    return Write("PATCH", NODE, changed, refusal)


def create(path: str, body: Document, refusal: str, account: str = "topowise-scheduler") -> Write:
    return Write("POST", path, body, refusal, JSON, account)


def eviction(**options: Any) -> Write:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "runs", "namespace": "default"}}
    return create(f"{PODS}/runs/eviction", {**body, "deleteOptions": options}, "evict")


def binding(
    refusal: str = "the annotation topowise.io/predicted, no other",
    name: str = "waits",
    namespace: str = "default",
    **metadata: Any,
) -> Write:
    target = {"apiVersion": "v1", "kind": "Node", "name": "metal-0"}
    meta = {"name": name, "namespace": namespace, **metadata}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
    return create(f"/api/v1/namespaces/{namespace}/pods/{name}/binding", body, refusal)


def event(reporter: str, kind: str) -> Write:
    regarding = {"apiVersion": "v1", "kind": kind, "namespace": "default", "name": "runs"}
    times = {"eventTime": "2026-01-01T00:00:00.000000Z", "reportingInstance": "thief"}
    said = {"action": "Theft", "reason": "Theft", "type": "Normal", "note": "theft", "regarding": regarding}
    meta = {"name": "theft", "namespace": "default"}
    return create(EVENTS, {"metadata": meta, **times, **said, "reportingController": reporter}, "in its own name")


def lease(name: str, metadata: Document, refusal: str = "of Leases of steering, nothing else", **changed: Any) -> Write:
    return Write("PATCH", f"{LEASES}/{name}", {"metadata": metadata, **changed}, refusal)


def placeholder(refusal: str, labels: Document | None = None, name: str = "", **changed: Any) -> Write:
    """A pod like a placeholder, but for these labels, this name, or these fields of its spec or its container."""
    records = [Service().put(waiting_pod("waits"))]
    planned = node_groups.empty_node(Service().trial, Profile((("pool", "a"),), EMPTY))
    planned.records += records
    document = placeholders.document(planned, ["metal-0"], PLACEHOLDERS, "theft")
    document["metadata"]["labels"] = document["metadata"]["labels"] if labels is None else labels
    document["metadata"]["name"] = name or document["metadata"]["name"]
    for field, value in changed.items():
        target = document["spec"]["containers"][0] if field in CONTAINER_FIELDS else document["spec"]
        target[field] = value
    return create(OWN_PODS, document, refusal)


def two_containers() -> Write:
    write = placeholder("requests and limits")
    assert write.body is not None
    (container,) = write.body["spec"]["containers"]
    write.body["spec"]["containers"].append({**container, "name": "other"})
    return write


def token_request(account: str, seconds: int, refusal: str, by: str) -> Write:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": seconds}}
    return create(f"{ACCOUNTS}/{account}/token", body, refusal, by)


_METADATA = "nothing of a pod's metadata but annotations"
_ANNOTATIONS = "annotations topowise.io/requeued, no other"
_STATUS = "of a pod's status: nominatedNodeName, conditions"
_FORBIDDEN = "is forbidden: User"
_NODE = "nothing of nodes but their taints"
_GUARD = "of nodes the annotations topowise.io/scale-down-guard"
_LABEL = "the label topowise.io/known-node, no other"
_TAINT = "may remove the taint topowise.io/unreported"
_KUBE_SCHEDULER = "topowise-kube-scheduler"
_PART = {"app.kubernetes.io/part-of": "topowise"}
# Of a privileged pod.
_OTHER_IMAGE = {"spec": {"containers": [{"name": "main", "image": "registry.example/theft:1"}]}}
THEFTS = {
    "image": Write("PATCH", f"{SYSTEM}/proxy", _OTHER_IMAGE, _FORBIDDEN, STRATEGIC),
    "label": status("runs", {"labels": {"app": "theft"}}, {}, _METADATA),
    "label removed": status("runs", {"labels": None}, {}, _METADATA),
    "finalizer": status("runs", {"finalizers": ["example.com/theft"]}, {}, _METADATA),
    "annotation": status("runs", {"annotations": {"example.com/a": "theft"}}, {}, _ANNOTATIONS),
    "annotation removed": status("runs", {"annotations": None}, {}, _ANNOTATIONS),
    "long annotation": status("runs", {"annotations": {REQUEUED_ANNOTATION: "x" * 254}}, {}, "at most 253 characters"),
    "phase": status("runs", {}, {"phase": "Failed"}, _STATUS),
    "address": status("runs", {}, {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}, _STATUS),
    "reason": status("runs", {}, {"reason": "Evicted"}, _STATUS),
    "condition": status("runs", {}, {"conditions": [{**READY, "status": "False"}]}, "Alignable of pods, no other"),
    "conditions removed": status("runs", {}, {"conditions": []}, "Alignable of pods, no other"),
    "other taint removed": node(_TAINT, spec={"taints": [OURS]}),
    "all taints removed": node(_TAINT, spec={"taints": None}),
    "taint added": node(_TAINT, spec={"taints": [OURS, THEIRS, {"key": "theft", "effect": "NoExecute"}]}),
    "own taint changed": node(_TAINT, spec={"taints": [{**OURS, "effect": "NoExecute"}, THEIRS]}),
    "node label": node(_LABEL, metadata={"labels": {"node-role.kubernetes.io/control-plane": ""}}),
    "node annotation": node(_GUARD, metadata={"annotations": {"a": "theft"}}),
    "node finalizer": node(_NODE, metadata={"finalizers": ["example.com/theft"]}),
    "unschedulable": node(_NODE, spec={"unschedulable": True}),
    "provider id": node(_NODE, spec={"providerID": "theft://1"}),
    "pod CIDR": node(_NODE, spec={"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}),
    "node status": Write("PATCH", f"{NODE}/status", {"status": {"phase": "Pending"}}, _FORBIDDEN),
    "running pod deleted": Write("DELETE", f"{PODS}/runs", None, "pods that a kubelet has refused"),
    "failed pod deleted": Write("DELETE", f"{PODS}/failed", None, "pods that a kubelet has refused"),
    "pod of no controller deleted": Write("DELETE", f"{PODS}/orphan", None, "that a controller makes anew"),
    "other pod": placeholder("only placeholders", labels={}),
    "placeholder elsewhere": create(PODS, {"metadata": {"name": "x"}, "spec": {"containers": []}}, _FORBIDDEN),
    "placeholder with a scheduler": placeholder("of the scheduler", schedulerName="default-scheduler"),
    "placeholder on a node": placeholder("of the scheduler", nodeName="metal-0"),
    "placeholder with another image": placeholder("as it is", image="registry.example/theft:1"),
    "placeholder with a command": placeholder("as it is", command=["theft"]),
    "placeholder with a secret": placeholder(
        "no token, volumes", volumes=[{"name": "a", "secret": {"secretName": "topowise-tls"}}]
    ),
    "placeholder with a token": placeholder("no token, volumes", automountServiceAccountToken=True),
    "placeholder of the host": placeholder("namespaces of the host", hostNetwork=True),
    "placeholder of root": placeholder("namespaces of the host", securityContext={"runAsUser": 0}),
    "critical placeholder": placeholder("of the PriorityClass", priorityClassName="system-node-critical"),
    "placeholder of no class": placeholder("of the PriorityClass", priorityClassName=""),
    "placeholder that looks like an exporter": placeholder(
        "labels of its own", {placeholders.LABEL: "x", **_PART, "app.kubernetes.io/component": "exporter"}
    ),
    "placeholder of another application": placeholder(
        "labels of its own", {placeholders.LABEL: "x", "app.kubernetes.io/part-of": "theirs"}
    ),
    "placeholder by another name": placeholder("name begins", name="theft"),
    "placeholder without requests": placeholder("requests and limits", resources={}),
    "placeholder with other limits": placeholder(
        "requests and limits", resources={"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}
    ),
    "placeholder with two containers": two_containers(),
    "binding of a placeholder": binding("binds no placeholder", PLACED, NAMESPACE),
    "label of a placeholder": Write(
        "PATCH", f"{OWN_PODS}/{PLACED}/status", {"metadata": {"labels": {"app": "x"}}}, "a placeholder's metadata"
    ),
    "address of a placeholder": Write(
        "PATCH",
        f"{OWN_PODS}/{PLACED}/status",
        {"status": {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}},
        "of a placeholder's status",
    ),
    "pod of its namespace deleted": Write("DELETE", f"{OWN_PODS}/other", None, "pods that a kubelet has refused"),
    "all pods deleted": Write("DELETE", PODS, None, _FORBIDDEN),
    "eviction of any uid": eviction(),
    "eviction at once": eviction(preconditions={"uid": "x"}, gracePeriodSeconds=0),
    "annotation by a binding": binding(annotations={"container.apparmor.security.beta.kubernetes.io/main": "x"}),
    "label by a binding": binding(labels={"app": "theft"}),
    "event of another reporter": event("kubelet", "Pod"),
    "event of a ConfigMap": event("topowise.io/topowise-scheduler", "ConfigMap"),
    "other lease": create(LEASES, {"metadata": {"name": "topowise-scheduler"}}, "Lease topowise-scheduler-requeue"),
    "leadership of kube-scheduler": lease("topowise-scheduler", {}, spec={"holderIdentity": "theft"}),
    "holder of a steering lease": lease("topowise-steering-metal-0", {}, spec={"holderIdentity": "theft"}),
    "status of steering": lease("topowise-steering-metal-0", {"annotations": {"topowise.io/steering-status": "{}"}}),
    "finalizer of a steering lease": lease("topowise-steering-metal-0", {"finalizers": ["example.com/theft"]}),
    "long request of steering": lease(
        "topowise-steering-metal-0",
        {"annotations": {"topowise.io/steering-request": "x" * 513}},
        "at most 512 characters",
    ),
    "token of kube-scheduler": token_request(_KUBE_SCHEDULER, 3600, _FORBIDDEN, "topowise-scheduler"),
    "own token": token_request("topowise-scheduler", 3600, _FORBIDDEN, "topowise-scheduler"),
    "token for a day": token_request("topowise-scheduler", 86400, "an hour at most", _KUBE_SCHEDULER),
    "token of the exporter": token_request("topowise-exporter", 3600, _FORBIDDEN, _KUBE_SCHEDULER),
    "secrets": Write("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", None, _FORBIDDEN),
}
WITHOUT_EFFECT = {
    "node by the status": Write("PATCH", f"{SYSTEM}/proxy/status", {"spec": {"nodeName": "metal-1"}}, ""),
    "image by the status": Write("PATCH", f"{SYSTEM}/proxy/status", _OTHER_IMAGE, "", STRATEGIC),
    "owner by the status": status("runs", {"ownerReferences": [OWNER]}, {}, ""),
}


def pod(name: str, **metadata: Any) -> Document:
    amounts = {"cpu": "1", "memory": "1Gi"}
    container = {"name": "main", "image": IMAGE, "resources": {"requests": amounts, "limits": amounts}}
    spec = {"schedulerName": "topowise-scheduler", "terminationGracePeriodSeconds": 0, "containers": [container]}
    meta = {"name": name, "namespace": "default", **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def put(cluster: Cluster, name: str, where: str = "", changed: Document | None = None, **metadata: Any) -> Document:
    """A pod on a node or none, with a status."""
    document = pod(name, **metadata)
    document["spec"] |= {"nodeName": where} if where else {}
    answer = cluster.call("POST", PODS, document)
    assert answer[0] == 201, answer
    answer = cluster.call("PATCH", f"{PODS}/{name}/status", {"status": changed or {}}, content_type=MERGE_PATCH)
    assert answer[0] == 200, answer
    return answer[1]


def send(cluster: Cluster, write: Write, query: str = "") -> tuple[int, Document]:
    token = cluster.token(write.account)
    path = write.path + query
    return cluster.call(write.method, path, write.body, token=token, content_type=write.content_type)


@contextlib.contextmanager
def filled(render: Any, *settings: str) -> Iterator[Cluster]:
    """An API server with the objects of the chart, pods and a node."""
    with installed(render("", *settings)) as cluster:
        cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": "metal-0"}, "spec": {"taints": [OURS, THEIRS]}})
        proxy = pod("proxy", namespace="kube-system")
        proxy["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        assert cluster.call("POST", SYSTEM, proxy)[0] == 201
        for name in ("topowise-scheduler", "topowise-steering-metal-0"):
            cluster.call("POST", LEASES, {"metadata": {"name": name}, "spec": {"holderIdentity": "theirs"}})
        for name, labels in ((PLACED, {placeholders.LABEL: "x"}), ("other", {})):
            assert cluster.call("POST", OWN_PODS, pod(name, namespace=NAMESPACE, labels=labels))[0] == 201
        put(cluster, "waits")
        running = {"phase": "Running", "conditions": [READY]}
        put(cluster, "runs", "metal-0", running, labels={"app": "theirs"}, annotations={"example.com/a": "theirs"})
        put(cluster, "orphan", "metal-0", REFUSED)
        put(cluster, "failed", "metal-0", {"phase": "Failed", "reason": "Evicted"}, ownerReferences=[OWNER])
        yield cluster


def is_refused(cluster: Cluster, write: Write) -> bool:
    """Whether a write would be refused; nothing is written."""
    return send(cluster, write, "?dryRun=All")[0] in (403, 422)


@pytest.fixture(scope="module")
def cluster(render: Any) -> Iterator[Cluster]:
    """With every feature on; all policies are in effect."""
    with filled(render, *EVERY_FEATURE) as filled_cluster:
        # A policy takes effect some moments after it was made.
        eventually(lambda: all(is_refused(filled_cluster, theft) for theft in THEFTS.values()), 60)
        yield filled_cluster


def test_without_policies_roles_alone_keep_specs_secrets_and_tokens(render: Any) -> None:
    """The column of docs/threat-model.md, and proof that the policies are what refuses the other thefts."""
    with filled(render, *EVERY_FEATURE, "scheduler.restrictWrites=false") as cluster:
        refused = {name for name, theft in THEFTS.items() if is_refused(cluster, theft)}
    assert refused == {name for name, theft in THEFTS.items() if theft.refusal == _FORBIDDEN}


def test_what_a_thief_of_kube_schedulers_token_can_do(cluster: Cluster) -> None:
    can = ("label", "phase", "running pod deleted", "label by a binding")
    cannot = ("image", "node label", "secrets", "all pods deleted", "placeholder elsewhere")
    refused = [name for name in (*can, *cannot) if is_refused(cluster, THEFTS[name]._replace(account=_KUBE_SCHEDULER))]
    assert refused == list(cannot)


@pytest.mark.parametrize("theft", THEFTS.values(), ids=THEFTS)
def test_what_the_service_does_not_write_is_refused(cluster: Cluster, theft: Write) -> None:
    code, answer = send(cluster, theft)
    assert code in (403, 422), answer
    assert theft.refusal in answer["message"]


@pytest.mark.parametrize("write", WITHOUT_EFFECT.values(), ids=WITHOUT_EFFECT)
def test_what_a_status_patch_cannot_reach_stays(cluster: Cluster, write: Write) -> None:
    path = write.path.removesuffix("/status")
    before = cluster.call("GET", path)[1]
    send(cluster, write)
    after = cluster.call("GET", path)[1]
    assert after["spec"] == before["spec"]
    assert after["metadata"].get("ownerReferences") == before["metadata"].get("ownerReferences")


def test_other_users_write_what_their_roles_allow(cluster: Cluster) -> None:
    for name in ("label", "node label", "phase"):
        theft = THEFTS[name]
        code, answer = cluster.call("PATCH", f"{theft.path}?dryRun=All", theft.body, content_type=MERGE_PATCH)
        assert code == 200, answer


class Acting:
    """The service's own code with its own token."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self.cluster = cluster
        self.api = api
        self.service = Service("TightFit")
        self.service.report(exact(kubelet(), name="metal-0"))

    def pod(self, name: str) -> Document:
        return self.cluster.call("GET", f"{PODS}/{name}")[1]

    def record(self, document: Document) -> PodRecord:
        return self.service.put(document)

    async def requeue(self) -> None:
        record = self.record(put(self.cluster, "to-requeue"))
        ledger, fits = self.service.ledger, self.service.answers.fits
        requeuer = Requeuer(self.api, ledger, fits, interval=1.0, per_second=1.0)
        await requeuer._requeue(record)
        assert REQUEUED_ANNOTATION in self.pod("to-requeue")["metadata"]["annotations"]
        assert ledger.events["requeued"] == 1
        # A pod that is being deleted: the API server keeps two more fields of it.
        document = put(self.cluster, "ends", finalizers=["example.com/keeps"])
        self.cluster.call("DELETE", f"{PODS}/ends")
        await requeuer._requeue(self.record(document))
        assert REQUEUED_ANNOTATION in self.pod("ends")["metadata"]["annotations"]
        assert ledger.events["requeued"] == 2
        # Another pod has the name by now: that is no failure, and the other pod is not touched.
        document = put(self.cluster, "anew")
        document["metadata"]["uid"] = "11111111-2222-3333-4444-555555555555"
        await requeuer._requeue(self.record(document))
        assert "annotations" not in self.pod("anew")["metadata"]
        assert ledger.events["requeued"] == 2

    async def nominate(self) -> None:
        document = put(self.cluster, "to-nominate")
        for target in ("metal-0", ""):
            version = document["metadata"]["resourceVersion"]
            assert await nominate(self.api, self.record(document), target, version=version)
            document = self.pod("to-nominate")
            assert document["status"].get("nominatedNodeName", "") == target

    async def tell(self) -> None:
        record = self.record(put(self.cluster, "to-tell", changed={"conditions": [{**READY, "status": "False"}]}))
        for text in ("no room", "less room"):
            await WaitingPods(self.api, self.service.ledger, self.service.view).write(record, text)
        review = {
            condition["type"]: condition.get("message") for condition in self.pod("to-tell")["status"]["conditions"]
        }
        assert review == {"Ready": None, CONDITION: "less room"}

    async def clear_up(self) -> None:
        record = self.record(put(self.cluster, "to-delete", "metal-0", REFUSED, ownerReferences=[OWNER]))
        await RefusedPods(self.api, self.service.ledger)._clear_up(record)
        assert self.service.ledger.events["refused_pod_deleted"] == 1
        assert self.cluster.call("GET", f"{PODS}/to-delete")[0] == 404

    async def evict(self) -> None:
        record = self.record(put(self.cluster, "to-evict", "metal-0", {"phase": "Running"}))
        assert await evictions.evict(self.api, record, is_dry=True)
        assert await evictions.evict(self.api, record)
        await events.post(self.api, record, "Moved", "The pod was evicted", kind="Normal", action="Move")
        await events.post_about_node(
            self.api, "metal-0", "ReportNotUsed", "The report is too large", action="ReadReport"
        )

    async def bind(self) -> None:
        meta = put(self.cluster, "to-bind")["metadata"]
        args = {"PodName": "to-bind", "PodNamespace": "default", "PodUID": meta["uid"], "Node": "metal-0"}
        binder = Binder(self.api, self.service.ledger, self.service.records, lambda: None)
        assert json.loads((await binder.bind(json.dumps(args).encode())).body) == {"Error": ""}
        bound = self.pod("to-bind")
        assert bound["spec"]["nodeName"] == "metal-0"
        assert "topowise.io/predicted" in bound["metadata"]["annotations"]

    async def steer(self) -> None:
        """Requests a label twice and withdraws the request, without a plug-in that answers."""
        ledger, name = self.service.ledger, "metal-1"
        self.cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        steering = NodeSteering(
            self.api, NAMESPACE, wait=0.5, expiry=30.0, lost=ledger.lose_label, unadmitted=lambda _: set(), clock=float
        )
        watch = asyncio.create_task(steering.source.run())
        assert "has not answered" in await steering.request(name, "uid-a", 1, 1)
        async with asyncio.timeout(30):
            while not steering._nodes[name].seen:
                await asyncio.sleep(0.05)
        path = f"{LEASES}/topowise-steering-{name}"
        meta = self.cluster.call("GET", path)[1]["metadata"]
        assert '"numa":1' in meta["annotations"]["topowise.io/steering-request"]
        assert [owner["name"] for owner in meta["ownerReferences"]] == [name]
        await steering.withdraw(name, "uid-a")
        left = self.cluster.call("GET", path)[1]["metadata"].get("annotations", {})
        assert "topowise.io/steering-request" not in left
        watch.cancel()

    async def remove_taint(self) -> None:
        nodes = Nodes()
        self.cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": "new"}, "spec": {"taints": [OURS, THEIRS]}})
        await StartupTaint(self.api, self.service.ledger, nodes)._remove("new")
        assert self.cluster.call("GET", "/api/v1/nodes/new")[1]["spec"]["taints"] == [THEIRS]

    async def scale_up(self) -> None:
        """Requests a node, attributes it, and ends and deletes the placeholder."""
        service, later = self.service, 0.0
        settings = ScaleUpSettings(enabled=True, group_labels=("pool",))
        demand = Demand(self.api, service.view, patience=0.0)
        leader = ScaleUp(
            self.api,
            service.trial,
            demand,
            settings,
            namespace=NAMESPACE,
            workloads=WorkloadPods(patience=0.0),
            now=lambda: time.time() + later,
        )
        record = self.record(put(self.cluster, "to-scale-up"))
        planned = node_groups.empty_node(Service().trial, Profile((("pool", "a"),), EMPTY))
        planned.records.append(record)
        created = await leader._create(planned, [], [Node("metal-0", hostname="metal-0")])
        await leader._patch(created, placeholders.node_patch(created.uid, "metal-0", time.time()))
        await leader._patch(created, placeholders.end_patch(created.uid, "useless", "it cannot align", time.time()))
        path = f"{OWN_PODS}/{created.name}"
        ended = self.cluster.call("GET", path)[1]
        assert ended["status"]["phase"] == "Failed"
        assert ended["metadata"]["annotations"][placeholders.OUTCOME_ANNOTATION] == "useless"
        later = 1e6
        self.cluster.call("DELETE", f"{OWN_PODS}/{PLACED}")
        await leader.sync()
        assert self.cluster.call("GET", path)[0] == 404
        self.cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": "known"}})
        await known_nodes.mark(self.api, [Node("known")])
        assert placeholders.KNOWN_NODE_LABEL in self.cluster.call("GET", "/api/v1/nodes/known")[1]["metadata"]["labels"]

    async def check(self) -> None:
        """Activates an AdmissionCheck, and rejects a Workload with an event."""
        call, service = self.cluster.call, self.service
        for definition in kueue_definitions.all_of():
            self.cluster.apply(definition)
        collections = [f"{KUEUE}/{name}" for name in ("workloads", "admissionchecks", "resourceflavors")]
        eventually(lambda: all(call("GET", path)[0] == 200 for path in collections), 60)
        kind = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
        spec: Document = {"controllerName": CONTROLLER}
        check = {**kind, "kind": "AdmissionCheck", "metadata": {"name": "aligned"}, "spec": spec}
        assert call("POST", f"{KUEUE}/admissionchecks", check)[0] == 201
        spec = {"podSets": [{"name": "main", "count": 1, "template": {"spec": waiting_pod("x", "64")["spec"]}}]}
        workload = {**kind, "kind": "Workload", "metadata": {"name": "job"}, "spec": spec}
        assert call("POST", f"{KUEUE}/namespaces/default/workloads", workload)[0] == 201
        status = {
            "conditions": [{"type": "QuotaReserved", "status": "True"}],
            "admissionChecks": [{"name": "aligned", "state": "Pending", "message": ""}],
        }
        path = f"{KUEUE}/namespaces/default/workloads/job"
        assert call("PATCH", f"{path}/status", {"status": status}, content_type=MERGE_PATCH)[0] == 200
        checks = AdmissionChecks(self.api, service.view, service.fitting(8))
        task = asyncio.create_task(checks.run())
        posted: list[Document] = []
        try:
            async with asyncio.timeout(60):
                while not posted:
                    assert not task.done(), task
                    await asyncio.sleep(0.1)
                    items = call("GET", f"{EVENTS}?fieldSelector=reason=AlignmentCheckRejected")[1]["items"]
                    posted += [item["regarding"] for item in items]
        finally:
            task.cancel()
        assert [(item["kind"], item["name"]) for item in posted] == [("Workload", "job")]
        assert call("GET", path)[1]["status"]["admissionChecks"][0]["state"] == "Rejected"
        conditions = call("GET", f"{KUEUE}/admissionchecks/aligned")[1]["status"]["conditions"]
        assert [item["status"] for item in conditions] == ["True"]

    async def guard(self) -> None:
        service = self.service
        guard = ScaleDownGuard(self.api, service.trial)
        self.cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": "guarded"}})
        for is_guarded in (True, False):
            await guard._annotate("guarded", is_guarded=is_guarded)
            meta = self.cluster.call("GET", "/api/v1/nodes/guarded")[1]["metadata"]
            assert ("topowise.io/scale-down-guard" in meta.get("annotations", {})) is is_guarded

    async def lead(self) -> None:
        """Makes the Lease, renews it and gives it back."""
        timing = Timing(lease_duration=15.0, renew_deadline=10.0, retry_period=1.0)
        elector = Elector(self.api, NAMESPACE, "topowise-scheduler-requeue", "replica", timing=timing)
        led = asyncio.Event()

        async def work() -> None:
            led.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(elector.run(work))
        await asyncio.wait_for(led.wait(), 30)
        path = f"{LEASES}/topowise-scheduler-requeue"
        before = self.cluster.call("GET", path)[1]
        while self.cluster.call("GET", path)[1]["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]:
            await asyncio.sleep(0.1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not self.cluster.call("GET", path)[1]["spec"].get("holderIdentity")


WRITES = (
    *("requeue", "nominate", "tell", "clear_up", "evict", "bind"),
    *("steer", "remove_taint", "scale_up", "check", "guard", "lead"),
)


@pytest.fixture
async def acting(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Acting]:
    access = cluster.kubeconfig("topowise-scheduler", tmp_path)
    async with Api(await credentials.load(str(access)), "test") as api:
        yield Acting(cluster, api)


@pytest.mark.parametrize("write", WRITES)
async def test_what_the_service_writes_passes(acting: Acting, write: str) -> None:
    await getattr(acting, write)()
