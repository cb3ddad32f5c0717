"""Placement on a real API server: which pods get the gate, and what the service's account can change of them.

Every field of a pod that API validation lets somebody change is tried with the service's token, one by one
(ValidatePodUpdate in pkg/apis/core/validation). The administrator's same request passes: it is the policy that refuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chart_cluster import NAMESPACE, Cluster, Document, call, eventually, installed, key, op, owner
from sandbox import controlplane
from scheduling import Service, exact, kubelet
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.placement import DECISION, ENABLED, GATE, PLACED_ON
from topowise_scheduler.controllers.placement.deciding import Decisions, Write
from topowise_scheduler.controllers.placement.writing import Placer
from topowise_scheduler.ledger.pods.placements import Placement

if controlplane.assets() is None:
    pytest.skip("no etcd and kube-apiserver in $KUBEBUILDER_ASSETS", allow_module_level=True)
pytestmark = pytest.mark.apiserver

ON = "scheduler.config.placement.enabled=true"
ASKS = {GATE: ENABLED}
OURS, KUEUES = {"name": GATE}, {"name": "kueue.x-k8s.io/admission"}
PODS = "/api/v1/namespaces/default/pods"
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
ZONE = {"key": "zone", "operator": "In", "values": ["a", "b"]}
NOT_THERE = {"key": "metadata.name", "operator": "NotIn", "values": ["metal-9"]}
CHOSEN = {"key": "metadata.name", "operator": "In", "values": ["metal-0"]}
LIKES = {"weight": 1, "preference": {"matchExpressions": [ZONE]}}
APART = {REQUIRED: [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}]}


def pod(name: str, *gates: Document, spec: Document | None = None, **metadata: Any) -> Document:
    container = {"name": "main", "image": "registry.example/main:1"}
    fields = {"containers": [container], **({"schedulingGates": list(gates)} if gates else {}), **(spec or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": fields}


def nodes(*terms: Document, **more: Any) -> Document:
    """A node affinity with these required terms."""
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}, **more}}


# Each mutable field of a pod has a value here; a negative grace period, which may become 1, is 1 since it was decoded.
RICH = {
    "initContainers": [{"name": "first", "image": "registry.example/first:1"}],
    "affinity": {
        **nodes({"matchExpressions": [ZONE]}, {"matchFields": [NOT_THERE]}, {}, **{PREFERRED: [LIKES]}),
        "podAntiAffinity": APART,
    },
    "nodeSelector": {"disk": "fast"},
    "activeDeadlineSeconds": 3600,
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}],
}
TERMS = f"/spec/affinity/nodeAffinity/{REQUIRED}/nodeSelectorTerms"


UNGATED = [op("/spec/schedulingGates/0", OURS, "test"), op("/spec/schedulingGates/0", verb="remove")]
MARKED = op(f"/metadata/annotations/{key(PLACED_ON)}", "metal-0")
NAMED = [op(f"{TERMS}/0/matchFields", [CHOSEN]), op(f"{TERMS}/1/matchFields/-", CHOSEN)]
PLACED = [*UNGATED, MARKED, *NAMED]


@pytest.fixture(scope="module")
def cluster(render: Any) -> Iterator[Cluster]:
    """An API server with the chart's objects, in force; also namespaces that may have no gates ask for them."""
    with installed(render("", ON)) as cluster:
        for name in ("asks", "kube-system", NAMESPACE):
            metadata = {"name": name, "labels": ASKS}
            cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": "metal-0"}})
        put(cluster, pod("waits", OURS, KUEUES, spec=RICH, annotations={"a": "theirs"}, labels={"app": "theirs"}))
        put(cluster, pod("gated-by-kueue", KUEUES, annotations={"a": "theirs"}))
        put(cluster, pod("ungated", annotations={"a": "theirs"}))
        # A policy takes effect some moments after it was made.
        eventually(lambda: gates(cluster, "asks") == [OURS] and gates(cluster, "default", labels=ASKS) == [OURS])
        eventually(lambda: serve(cluster, "PATCH", f"{PODS}/waits", PLACED)[0] == 200)
        for name in ("image", "pod without mark deleted", "phase"):
            eventually(lambda name=name: serve(cluster, *THEFTS[name][:3])[0] in (403, 422))
        eventually(lambda: made(cluster, pod("x", annotations={PLACED_ON: "metal-0"}))[0] == 403)
        yield cluster


def put(cluster: Cluster, document: Document) -> Document:
    code, answer = cluster.call("POST", PODS, document)
    assert code == 201, answer
    return answer


def made(cluster: Cluster, document: Document, namespace: str = "default") -> tuple[int, Document]:
    """The answer to a new pod, which is not kept."""
    return cluster.call("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", document)


def gates(cluster: Cluster, namespace: str, *own: Document, spec: Document | None = None, **metadata: Any) -> Any:
    """The gates that a new pod gets."""
    code, answer = made(cluster, pod("new", *own, spec=spec, **metadata), namespace)
    assert code == 201, answer
    return answer["spec"].get("schedulingGates", [])


def serve(cluster: Cluster, method: str, path: str, body: Any = None, *, query: str = "?dryRun=All") -> Any:
    """The same with the service's token."""
    return call(cluster, method, path, body, query=query, token=cluster.token("topowise-scheduler"))


GATED = {
    "namespace": ("asks", [], {}, [OURS]),
    "label": ("default", [], {"labels": ASKS}, [OURS]),
    "both": ("asks", [], {"labels": ASKS}, [OURS]),
    "neither": ("default", [], {}, []),
    "another value": ("default", [], {"labels": {GATE: "no"}}, []),
    "kube-system": ("kube-system", [], {"labels": ASKS}, []),
    "own namespace": (NAMESPACE, [], {"labels": ASKS}, []),
    "bound": ("asks", [], {"spec": {"nodeName": "metal-0"}}, []),
    "daemon": ("asks", [], {"ownerReferences": owner("DaemonSet")}, []),
    "owned by a daemon set": ("asks", [], {"ownerReferences": owner("DaemonSet", controller=False)}, [OURS]),
    "replica": ("asks", [], {"ownerReferences": owner("ReplicaSet")}, [OURS]),
    "scheduling group": ("asks", [], {"spec": {"schedulingGroup": {"podGroupName": "a"}}}, []),
    "gated already": ("asks", [OURS], {}, [OURS]),
    "gated by Kueue": ("asks", [KUEUES], {}, [KUEUES, OURS]),
    "gated by both": ("asks", [OURS, KUEUES], {}, [OURS, KUEUES]),
}


@pytest.mark.parametrize(("namespace", "own", "fields", "expected"), GATED.values(), ids=GATED)
def test_pods_that_ask_for_the_gate_get_it(
    cluster: Cluster, namespace: str, own: list[Document], fields: Document, expected: list[Document]
) -> None:
    assert gates(cluster, namespace, *own, **fields) == expected


def test_the_gate_is_all_that_changes(cluster: Cluster) -> None:
    (_, with_gate), (_, without) = (made(cluster, pod("new", spec=RICH), name) for name in ("asks", "default"))
    assert with_gate["spec"].pop("schedulingGates") == [OURS]
    assert with_gate["spec"] == without["spec"]


AFFINITIES: dict[str, tuple[Document, Document]] = {
    "none": ({}, nodes({"matchFields": [CHOSEN]})),
    "of pods": ({"podAntiAffinity": APART}, {"podAntiAffinity": APART, **nodes({"matchFields": [CHOSEN]})}),
    "preferred": (
        {"nodeAffinity": {PREFERRED: [LIKES]}},
        nodes({"matchFields": [CHOSEN]}, **{PREFERRED: [LIKES]}),
    ),
    "terms": (
        nodes({"matchExpressions": [ZONE]}, {"matchExpressions": [ZONE], "matchFields": [NOT_THERE]}, {}),
        nodes(
            {"matchExpressions": [ZONE], "matchFields": [CHOSEN]},
            {"matchExpressions": [ZONE], "matchFields": [NOT_THERE, CHOSEN]},
            {},
        ),
    ),
}


@pytest.fixture
async def placer(cluster: Cluster, tmp_path: Path) -> AsyncIterator[tuple[Service, Placer]]:
    """The service's own code with its own token."""
    service = Service("TightFit", places=True)
    service.report(exact(kubelet(), name="metal-0"))
    access = cluster.kubeconfig("topowise-scheduler", tmp_path)
    async with Api(await credentials.load(str(access)), "test") as api:
        decisions = Decisions(service.trial, service.clock)
        yield service, Placer(api, service.ledger, decisions, settles=False)


@pytest.mark.parametrize("affinity", AFFINITIES)
async def test_the_service_places_a_pod(cluster: Cluster, placer: tuple[Service, Placer], affinity: str) -> None:
    """And deletes it when its node is lost."""
    before, after = AFFINITIES[affinity]
    name, owners = f"placed-{affinity.replace(' ', '-')}", owner("ReplicaSet")
    document = put(
        cluster, pod(name, OURS, KUEUES, spec={"affinity": before} if before else {}, ownerReferences=owners)
    )
    record = placer[0].put(document)
    assert await placer[1]._written(Write(record, "metal-0", "required", "d-1"))
    placed = cluster.call("GET", f"{PODS}/{name}")[1]
    assert placed["spec"]["schedulingGates"] == [KUEUES]
    assert placed["spec"]["affinity"] == after
    assert placed["metadata"]["annotations"] == {PLACED_ON: "metal-0", DECISION: "d-1"}
    await placer[1]._end(Placement(record, "metal-0", 0.0, is_seen=True))
    assert cluster.call("GET", f"{PODS}/{name}")[0] == 404


@pytest.mark.parametrize("node", ["metal-0", ""])
async def test_the_service_leaves_the_affinity_as_it_is(
    cluster: Cluster, placer: tuple[Service, Placer], node: str
) -> None:
    """Of a nominated pod, and of a pod whose node kube-scheduler is to choose."""
    record = placer[0].put(put(cluster, pod(f"left-{node or 'open'}", OURS, spec=RICH)))
    assert await placer[1]._written(Write(record, node, "nominated"))
    left = cluster.call("GET", f"{PODS}/left-{node or 'open'}")[1]
    assert left["status"].get("nominatedNodeName", "") == node
    assert left["metadata"]["annotations"] == {PLACED_ON: node}
    assert left["spec"]["affinity"] == RICH["affinity"]
    assert "schedulingGates" not in left["spec"]


def test_the_service_may_write_what_the_application_reads(cluster: Cluster) -> None:
    contract = op(f"/metadata/annotations/{key(GATE)}", '{"main":{"cpus":"0-3"}}')
    assert serve(cluster, "PATCH", f"{PODS}/waits", [*PLACED, contract])[0] == 200


def test_a_pod_as_large_as_the_api_server_accepts_is_placed(cluster: Cluster) -> None:
    """The cost of the policy's expressions is bounded, and the bound is not reached."""
    terms = [{"matchExpressions": [{**ZONE, "values": [f"{i}-{j}" for j in range(20)]}]} for i in range(1000)]
    many = [{"name": f"n{i}", "value": "x" * 30} for i in range(10_000)]
    document = pod("large", OURS, annotations={"a": "x" * 200_000}, spec={"affinity": nodes(*terms)})
    document["spec"]["containers"][0]["env"] = many
    put(cluster, document)
    patch = [*UNGATED, MARKED, *(op(f"{TERMS}/{i}/matchFields", [CHOSEN]) for i in range(1000))]
    code, answer = serve(cluster, "PATCH", f"{PODS}/large", patch)
    assert code == 200, answer


class Theft(NamedTuple):
    """A request, words of its refusal, and whether the administrator may do the same."""

    method: str
    path: str
    body: Any
    refusal: str
    is_mutable: bool = True


def change(*operations: Document, refusal: str, base: list[Document] = PLACED) -> Theft:
    """A placement with something else."""
    return Theft("PATCH", f"{PODS}/waits", [*base, *operations], refusal)


_SPEC, _METADATA = "nothing of a pod's spec but", "nothing of a pod's metadata but"
_AFFINITY, _GATE = "only the node in its annotation", "removes this gate, no other"
_ANNOTATION, _FORBIDDEN = f"{GATE}, no other", "is forbidden: User"
_OTHER = {**CHOSEN, "values": ["metal-1"]}
_NODES = "/spec/affinity/nodeAffinity"
THEFTS = {
    "image": change(op("/spec/containers/0/image", "registry.example/theft:1"), refusal=_SPEC),
    "image of an init container": change(op("/spec/initContainers/0/image", "registry.example/x"), refusal=_SPEC),
    "deadline": change(op("/spec/activeDeadlineSeconds", 1), refusal=_SPEC),
    "toleration": change(op("/spec/tolerations/-", {"operator": "Exists"}), refusal=_SPEC),
    "toleration seconds": change(op("/spec/tolerations/0/tolerationSeconds", 1), refusal=_SPEC),
    "node selector": change(op("/spec/nodeSelector/zone", "a"), refusal=_SPEC),
    "label": change(op("/metadata/labels/app", "theft"), refusal=_METADATA),
    "labels removed": change(op("/metadata/labels", verb="remove"), refusal=_METADATA),
    "finalizer": change(op("/metadata/finalizers", ["example.com/theft"]), refusal=_METADATA),
    "owner": change(op("/metadata/ownerReferences", owner("ReplicaSet")), refusal=_METADATA),
    "generated name": change(op("/metadata/generateName", "theft-"), refusal=_METADATA),
    "annotation": change(op("/metadata/annotations/theft", ""), refusal=_ANNOTATION),
    "annotation changed": change(op("/metadata/annotations/a", "theft"), refusal=_ANNOTATION),
    "annotation removed": change(op("/metadata/annotations/a", verb="remove"), refusal=_ANNOTATION),
    "long mark": change(op(MARKED["path"], "x" * 254), refusal="at most 253", base=UNGATED),
    "long decision": change(op(f"/metadata/annotations/{key(DECISION)}", "x" * 254), refusal="at most 253"),
    "long contract": change(op(f"/metadata/annotations/{key(GATE)}", "x" * 16385), refusal="at most 253"),
    "Kueue's gate": change(op("/spec/schedulingGates/0", verb="remove"), refusal=_GATE),
    "Kueue's gate alone": change(op("/spec/schedulingGates/1", verb="remove"), refusal=_GATE, base=[MARKED, *NAMED]),
    "gate kept": change(refusal=_GATE, base=[MARKED, *NAMED]),
    "preference": change(op(f"{_NODES}/{PREFERRED}/-", LIKES), refusal=_AFFINITY),
    "preference changed": change(op(f"{_NODES}/{PREFERRED}/0/weight", 100), refusal=_AFFINITY),
    "preferences removed": change(op(f"{_NODES}/{PREFERRED}", verb="remove"), refusal=_AFFINITY),
    "preference alone": change(op(f"{_NODES}/{PREFERRED}/0/weight", 9), refusal=_AFFINITY, base=[*UNGATED, MARKED]),
    "expression": change(op(f"{TERMS}/0/matchExpressions/-", ZONE), refusal=_AFFINITY),
    "node of one term": change(refusal=_AFFINITY, base=PLACED[:-1]),
    "another node": change(op(f"{TERMS}/0/matchFields/0/values/0", "metal-1", "replace"), refusal=_AFFINITY),
    "a second node": change(op(f"{TERMS}/0/matchFields/-", _OTHER), refusal=_AFFINITY),
    "another operator": change(op(f"{TERMS}/0/matchFields/0/operator", "NotIn"), refusal=_AFFINITY),
    "another field": change(
        op(f"{TERMS}/0/matchExpressions/-", {**CHOSEN, "key": "kubernetes.io/hostname"}),
        refusal=_AFFINITY,
        base=[*UNGATED, MARKED],
    ),
    "node without the mark": change(refusal=_AFFINITY, base=[*UNGATED, *NAMED]),
    "other verbs: update": Theft("PUT", f"{PODS}/waits", pod("waits"), _FORBIDDEN, is_mutable=False),
    "other verbs: create": Theft("POST", PODS, pod("theft"), _FORBIDDEN),
    "other verbs: delete collection": Theft("DELETE", PODS, None, _FORBIDDEN),
    "pod of Kueue's gate": Theft(
        "PATCH", f"{PODS}/gated-by-kueue", [op("/spec/schedulingGates/0", verb="remove")], _GATE
    ),
    "pod without gate": Theft("PATCH", f"{PODS}/ungated", [MARKED], _GATE, is_mutable=False),
    "image without gate": Theft("PATCH", f"{PODS}/ungated", [op("/spec/containers/0/image", "x")], _GATE),
    "pod without mark deleted": Theft("DELETE", f"{PODS}/waits", None, "that it has placed and that are not bound"),
    "ephemeral container": Theft(
        "PATCH",
        f"{PODS}/waits/ephemeralcontainers",
        [op("/spec/ephemeralContainers", [{"name": "theft", "image": "x", "terminationMessagePolicy": "File"}])],
        _FORBIDDEN,
    ),
    "resize": Theft(
        "PATCH",
        f"{PODS}/waits/resize",
        [op("/spec/containers/0/resources", {"requests": {"cpu": "1"}})],
        _FORBIDDEN,
        is_mutable=False,
    ),
    "eviction": Theft(
        "POST",
        f"{PODS}/waits/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "waits"}},
        _FORBIDDEN,
    ),
    "binding of a gated pod": Theft(
        "POST",
        f"{PODS}/waits/binding",
        {"metadata": {"name": "waits"}, "target": {"kind": "Node", "name": "metal-0"}},
        "schedulingGates",
        is_mutable=False,
    ),
    "phase": Theft("PATCH", f"{PODS}/waits/status", {"status": {"phase": "Failed"}}, "of a pod's status"),
    "mark by the status": Theft(
        "PATCH",
        f"{PODS}/waits/status",
        {"metadata": {"annotations": {PLACED_ON: "metal-1"}}},
        "topowise.io/requeued, no other",
    ),
}


@pytest.mark.parametrize("theft", THEFTS.values(), ids=THEFTS)
def test_what_a_placement_does_not_write_is_refused(cluster: Cluster, theft: Theft) -> None:
    code, answer = serve(cluster, theft.method, theft.path, theft.body)
    assert code in (403, 409, 422), answer
    assert theft.refusal in answer["message"]


@pytest.mark.parametrize("name", [name for name, theft in THEFTS.items() if theft.is_mutable])
def test_the_api_server_itself_allows_it(cluster: Cluster, name: str) -> None:
    method, path, body, *_ = THEFTS[name]
    # Nobody else may write the marks.
    body = [item for item in body if "~1place" not in item["path"]] if isinstance(body, list) else body
    code, answer = call(cluster, method, path, body)
    assert code in (200, 201), answer


DELETIONS: dict[str, tuple[bool, bool, bool, str]] = {
    "placed and unbound": (True, True, False, ""),
    "bound": (True, True, True, "that are not bound"),
    "without owner": (False, True, False, "that a controller makes anew"),
    "node left to kube-scheduler": (True, False, False, "that are not bound"),
}


@pytest.mark.parametrize(("owned", "named", "bound", "refusal"), DELETIONS.values(), ids=DELETIONS)
def test_the_service_deletes_placed_pods_that_lost_their_node(
    cluster: Cluster, owned: bool, named: bool, bound: bool, refusal: str
) -> None:
    name = f"lost-{owned}-{named}-{bound}".lower()
    put(cluster, pod(name, OURS, annotations={"a": ""}, ownerReferences=owner("ReplicaSet", controller=owned)))
    marked = [*UNGATED, {**MARKED, "value": "metal-0" if named else ""}]
    assert serve(cluster, "PATCH", f"{PODS}/{name}", marked, query="")[0] == 200
    if bound:
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "metal-0"}}
        assert call(cluster, "POST", f"{PODS}/{name}/binding", binding, query="")[0] == 201
    code, answer = serve(cluster, "DELETE", f"{PODS}/{name}")
    assert code == 403 if refusal else 200, answer
    assert refusal in answer.get("message", "")


@pytest.mark.parametrize("mark", [PLACED_ON, DECISION])
def test_only_the_service_marks_pods_that_are_not_bound(cluster: Cluster, mark: str) -> None:
    """A mark reserves a node. Nominations do that too, and no role of tenants contains pods/status."""
    code, answer = made(cluster, pod("new", annotations={mark: "metal-0"}))
    assert code == 403
    assert "only topowise-scheduler writes" in answer["message"]
    assert made(cluster, pod("new", annotations={mark: "metal-0"}, spec={"nodeName": "metal-0"}))[0] == 201
    placed, forged = f"marked-{mark.rpartition('-')[2]}", op(f"/metadata/annotations/{key(mark)}", "metal-1")
    put(cluster, pod(placed, OURS, annotations={"a": ""}))
    assert call(cluster, "PATCH", f"{PODS}/{placed}", [forged])[0] == 403
    decided = op(f"/metadata/annotations/{key(DECISION)}", "d-1")
    assert serve(cluster, "PATCH", f"{PODS}/{placed}", [*UNGATED, MARKED, decided], query="")[0] == 200
    for change_of_mark in (forged, {**forged, "op": "remove"}):
        assert call(cluster, "PATCH", f"{PODS}/{placed}", [change_of_mark])[0] == 403
    assert call(cluster, "PATCH", f"{PODS}/{placed}", [op("/metadata/annotations/a", "changed")])[0] == 200


def test_a_shared_user_places_pods_and_keeps_what_a_kube_scheduler_writes(render: Any) -> None:
    """kubeadm's kube-scheduler patches no pods, and deletes any pod."""
    objects = render("kubeadm-static-pod", ON)
    user = "system:kube-scheduler"
    with installed(objects) as cluster:
        put(cluster, pod("waits", OURS, annotations={"a": ""}))

        def send(method: str, *body: Document) -> tuple[int, Document]:
            return call(cluster, method, f"{PODS}/waits", list(body) or None, user=user)

        eventually(lambda: send("PATCH", op("/metadata/labels", {"a": "b"}))[0] == 403)
        assert send("PATCH", *UNGATED, MARKED)[0] == 200
        assert send("DELETE")[0] == 200
