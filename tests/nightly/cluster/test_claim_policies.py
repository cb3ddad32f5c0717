"""Claims on a real API server: what the service's account can write of them, and what is left to all others.

Each field of a claim and of its status that API validation lets somebody change is tried with the service's token, one
by one (ValidateResourceClaimUpdate and ValidateResourceClaimStatusUpdate in pkg/apis/resource/validation). The
administrator's same request passes unless it takes a device of the service: it is the policy that refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chart_cluster import NAMESPACE, Cluster, Document, call, eventually, installed, key, op, owner
from claim_objects import ClaimService, claiming, sized_claim
from placing import GATED as GATED_POD
from sandbox import controlplane
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.placement import ALLOCATED_FOR, ENABLED, GATE
from topowise_scheduler.options.claims.allocation import ClaimAllocation
from topowise_scheduler.options.claims.gate import ClaimOption

if controlplane.assets() is None:
    pytest.skip("no etcd and kube-apiserver in $KUBEBUILDER_ASSETS", allow_module_level=True)
pytestmark = pytest.mark.apiserver

OURS, FOREIGN = "gpu.example.com", "nic.example.com"
# As many as the configuration takes: the cost of the expressions is bounded.
DRIVERS = [*(f"driver-{i}.example.com" for i in range(31)), OURS]
ON = (
    "scheduler.mode=gate",
    "scheduler.config.resourceClaims.enabled=true",
    f"scheduler.config.resourceClaims.drivers={{{','.join(DRIVERS)}}}",
)
MARK, FINALIZER = ALLOCATED_FOR, "resource.kubernetes.io/delete-protection"
GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
SCHEDULER = "system:kube-scheduler"
CONTROLLER = "system:serviceaccount:kube-system:resource-claim-controller"
EARLIER = ("v1beta1", "v1beta2")
WHEN = "2026-11-28T12:00:00Z"


def claim(name: str, **metadata: Any) -> Document:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
    spec = {"devices": {"requests": requests}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "labels": {"a": "theirs"}, "annotations": {"a": "theirs"}, **metadata},
        "spec": spec,
    }


def allocation(*drivers: str, **fields: Any) -> Document:
    """Devices of these drivers."""
    results = [
        {"request": "gpu", "driver": driver, "pool": "n1", "device": f"gpu-{at}", **fields}
        for at, driver in enumerate(drivers)
    ]
    return {"allocationTimestamp": WHEN, "devices": {"results": results}}


def reserved(*uids: str, **fields: str) -> list[Document]:
    return [{"resource": "pods", "name": f"pod-{uid}", "uid": uid, **fields} for uid in uids]


def status(allocation: Document | None, reserved: list[Document] | None, **more: Any) -> Document:
    return {"status": {"allocation": allocation, "reservedFor": reserved, **more}}


def marked(uid: str | None = "pod-1", *more: str) -> Document:
    return {"metadata": {"finalizers": [*more, FINALIZER], "annotations": {MARK: uid}}}


TAKEN, FREED = status(allocation(OURS), reserved("pod-1")), status(None, None)


@pytest.fixture(scope="module")
def cluster(render: Any) -> Iterator[Cluster]:
    """An API server with the chart's objects, in force, and claims: new, allocated by us, and by kube-scheduler."""
    with installed(render("", *ON), apis=[f"resource.k8s.io/{version}" for version in EARLIER]) as cluster:
        for name in ("asks", "kube-system", NAMESPACE, "monitoring"):
            labels = {"resource.kubernetes.io/admin-access": "true"} if name == "monitoring" else {GATE: ENABLED}
            cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        for name in ("new", "waits", "ours", "theirs", "theirs-marked"):
            put(cluster, name)
        cluster.apply(_role("ClusterRole", rules=[DEVICE_STATUS]))
        account = {"kind": "ServiceAccount", "name": "topowise-scheduler", "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "device-status"}
        cluster.apply(_role("ClusterRoleBinding", roleRef=role, subjects=[account]))
        # A policy takes effect some moments after it was made.
        eventually(lambda: serve(cluster, "new", {"metadata": {"labels": {"a": "b"}}})[0] == 403)
        eventually(lambda: serve(cluster, "new/status", TAKEN)[0] == 403)
        eventually(lambda: write(cluster, "new", marked(), SCHEDULER)[0] == 403)
        eventually(lambda: write(cluster, "new/status", TAKEN, SCHEDULER)[0] == 403)
        for name in ("waits", "ours", "theirs-marked"):
            kept(serve(cluster, name, marked(), query=""))
        kept(serve(cluster, "ours/status", TAKEN, query=""))
        for name in ("theirs", "theirs-marked"):
            kept(write(cluster, name, {"metadata": {"finalizers": [FINALIZER]}}, SCHEDULER, query=""))
            kept(write(cluster, f"{name}/status", status(allocation(FOREIGN), reserved("pod-1")), SCHEDULER, query=""))
        yield cluster


# Before 1.36 the API server does not ask for this right, and so the policies are tried with it.
DEVICE_STATUS = {
    "apiGroups": ["resource.k8s.io"],
    "resources": ["resourceclaims/driver"],
    "verbs": ["arbitrary-node:patch"],
}


def _role(kind: str, **fields: Any) -> Document:
    version = "rbac.authorization.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "device-status"}, **fields}


def put(cluster: Cluster, name: str, **metadata: Any) -> Document:
    return kept(cluster.call("POST", CLAIMS, claim(name, **metadata)))


def kept(answer: tuple[int, Document]) -> Document:
    assert answer[0] in (200, 201), answer[1]
    return answer[1]


def write(cluster: Cluster, name: str, body: Any, user: str = "", *, query: str = "?dryRun=All") -> Any:
    """The answer to a patch of a claim or of its status, "name/status"; nothing is kept unless `query` is empty."""
    return call(cluster, "PATCH", f"{CLAIMS}/{name}", body, query=query, user=user)


def serve(cluster: Cluster, name: str, body: Any, *, query: str = "?dryRun=All") -> tuple[int, Document]:
    """The same with the service's token."""
    token = cluster.token("topowise-scheduler")
    return call(cluster, "PATCH", f"{CLAIMS}/{name}", body, query=query, token=token)


@pytest.mark.parametrize("finalizers", [[], ["example.com/theirs"], [FINALIZER, "example.com/theirs"]])
def test_the_service_allocates_takes_back_and_allocates_again(cluster: Cluster, finalizers: list[str]) -> None:
    name = f"life-{len(finalizers)}"
    meta = put(cluster, name, finalizers=finalizers)["metadata"]
    for uid in ("pod-1", "pod-2"):
        body = marked(uid, *(item for item in finalizers if item != FINALIZER))
        body["metadata"] |= {field: meta[field] for field in ("uid", "resourceVersion")}
        kept(serve(cluster, name, body, query=""))
        after = kept(serve(cluster, f"{name}/status", status(allocation(OURS, OURS), reserved(uid)), query=""))
        assert after["status"]["reservedFor"] == reserved(uid)
        # The API server removes the status of the devices with the allocation.
        device = {"driver": OURS, "pool": "n1", "device": "gpu-0", "conditions": []}
        kept(write(cluster, f"{name}/status", {"status": {"devices": [device]}}, query=""))
        after = kept(serve(cluster, f"{name}/status", FREED, query=""))
        assert not after["status"]
        meta = after["metadata"]
    assert sorted(meta["finalizers"]) == sorted({*finalizers, FINALIZER})


def test_claims_as_large_as_the_api_server_accepts_are_allocated(cluster: Cluster) -> None:
    """The cost of the policies' expressions is bounded, and the bound is not reached."""
    put(
        cluster,
        "large",
        annotations={f"a{i}": "x" * 200 for i in range(1000)},
        finalizers=[f"a.b/{i}" for i in range(200)],
    )
    kept(serve(cluster, "large", marked("pod-1", *(f"a.b/{i}" for i in range(200))), query=""))
    opaque = {"driver": OURS, "parameters": {"a": "x" * 10_000}}
    config = [{"source": "FromClass", "requests": ["gpu"], "opaque": opaque} for _ in range(32)]
    full = allocation(*[OURS] * 32)
    full["devices"]["config"] = config
    kept(serve(cluster, "large/status", status(full, reserved("pod-1")), query=""))
    kept(serve(cluster, "large/status", FREED, query=""))


class Theft(NamedTuple):
    """A patch, words of its refusal, and whether the administrator may send the same."""

    name: str
    body: Any
    refusal: str
    is_mutable: bool = True


def taken(refusal: str, *drivers: str, pods: list[Document] | None = None, **fields: Any) -> Theft:
    """An allocation that is not the service's; the administrator allocates no device of these drivers either."""
    body = status(allocation(*(drivers or [OURS]), **fields), reserved("pod-1") if pods is None else pods)
    return Theft("waits/status", body, refusal, is_mutable=False)


_METADATA, _FINALIZER = "nothing of a claim's metadata but", "no other, and removes none"
_MARK, _UNALLOCATED = f"the annotation {MARK}, no other", "only claims without an allocation"
_STATUS, _CHANGE, _DRIVER = "the allocation and its pod", "and change none", "only devices of driver-0"
_POD, _TOGETHER = "only for the pod in its annotation", "and its pod together"
_DEVICE = {"driver": OURS, "pool": "n1", "device": "gpu-0", "conditions": []}
THEFTS = {
    "label": Theft("waits", [op("/metadata/labels/a", "theft")], _METADATA),
    "labels removed": Theft("waits", [op("/metadata/labels", verb="remove")], _METADATA),
    "owner": Theft("waits", [op("/metadata/ownerReferences", owner("ReplicaSet"))], _METADATA),
    "generated name": Theft("waits", [op("/metadata/generateName", "theft-")], _METADATA),
    "annotation": Theft("waits", [op("/metadata/annotations/theft", "")], _MARK),
    "annotation changed": Theft("waits", [op("/metadata/annotations/a", "theft")], _MARK),
    "annotation removed": Theft("waits", [op("/metadata/annotations/a", verb="remove")], _MARK),
    "long mark": Theft("waits", marked("x" * 65), "at most 64", is_mutable=False),
    "another finalizer": Theft("waits", [op("/metadata/finalizers/-", "example.com/theft")], _FINALIZER),
    "finalizer removed": Theft("waits", [op("/metadata/finalizers/0", verb="remove")], _FINALIZER),
    "finalizers removed": Theft("ours", {"metadata": {"finalizers": None}}, _FINALIZER),
    "mark of an allocated claim": Theft("theirs", marked(), _UNALLOCATED, is_mutable=False),
    "another mark": Theft("ours", marked("pod-2"), _UNALLOCATED, is_mutable=False),
    "mark removed": Theft("ours", marked(None), _UNALLOCATED, is_mutable=False),
    "foreign device": taken(_DRIVER, FOREIGN),
    "also a foreign device": taken(_DRIVER, OURS, FOREIGN),
    "no device": Theft("waits/status", status({"devices": {}}, reserved("pod-1")), _DRIVER),
    "no pod": taken(_TOGETHER, pods=[]),
    "another pod": taken(_POD, pods=reserved("pod-2")),
    "two pods": taken(_POD, pods=reserved("pod-1", "pod-2")),
    "no pod but a group": taken(_POD, pods=reserved("pod-1", apiGroup="scheduling.k8s.io")),
    "another resource": taken(_POD, pods=reserved("pod-1", resource="podgroups")),
    "claim without mark": Theft("new/status", TAKEN, _POD, is_mutable=False),
    "another device": Theft(
        "ours/status", [op("/status/allocation/devices/results/0/device", "gpu-9")], "immutable", is_mutable=False
    ),
    "pod added": Theft("ours/status", [op("/status/reservedFor/-", *reserved("pod-2"))], _CHANGE),
    "pod removed": Theft("ours/status", [op("/status/reservedFor/0", verb="remove")], _CHANGE),
    "pod alone removed": Theft("ours/status", {"status": {"reservedFor": None}}, _CHANGE),
    "status of devices": Theft("ours/status", [op("/status/devices", [_DEVICE])], _STATUS),
    "status of devices beside": Theft(
        "waits/status", TAKEN | {"status": {**TAKEN["status"], "devices": [_DEVICE]}}, _STATUS, is_mutable=False
    ),
    "allocation of others": Theft("theirs/status", FREED, _DRIVER),
    "allocation of others, marked before": Theft("theirs-marked/status", FREED, _DRIVER),
    "spec": Theft("waits", [op("/spec/devices/requests/0/exactly/count", 2)], "immutable", is_mutable=False),
}


@pytest.mark.parametrize("theft", THEFTS.values(), ids=THEFTS)
def test_what_an_allocation_does_not_write_is_refused(cluster: Cluster, theft: Theft) -> None:
    code, answer = serve(cluster, theft.name, theft.body)
    assert code in (403, 422), answer
    assert theft.refusal in answer["message"]


@pytest.mark.parametrize("name", [name for name, theft in THEFTS.items() if theft.is_mutable])
def test_the_api_server_itself_allows_it(cluster: Cluster, name: str) -> None:
    kept(write(cluster, THEFTS[name].name, THEFTS[name].body))


def test_the_service_has_no_other_right_to_claims(cluster: Cluster) -> None:
    token = cluster.token("topowise-scheduler")
    for method, path, body in (
        ("POST", CLAIMS, claim("theft")),
        ("PUT", f"{CLAIMS}/waits", claim("waits")),
        ("PUT", f"{CLAIMS}/waits/status", claim("waits")),
        ("DELETE", f"{CLAIMS}/waits", None),
        ("DELETE", CLAIMS, None),
        ("POST", f"{GROUP}/resourceslices", {"metadata": {"name": "theft"}}),
        ("PATCH", f"{GROUP}/deviceclasses/gpu", {"metadata": {"labels": {"a": "b"}}}),
    ):
        code, answer = call(cluster, method, path, body, token=token)
        assert code == 403, answer
        assert "is forbidden: User" in answer["message"]


def test_a_claim_in_use_by_another_pod_is_kept(cluster: Cluster) -> None:
    """kube-scheduler adds a second pod to a shared claim."""
    put(cluster, "shared")
    kept(serve(cluster, "shared", marked(), query=""))
    kept(serve(cluster, "shared/status", TAKEN, query=""))
    body = [op("/status/reservedFor/-", *reserved("pod-2"))]
    kept(write(cluster, "shared/status", body, SCHEDULER, query=""))
    code, answer = serve(cluster, "shared/status", FREED)
    assert code == 403
    assert _POD in answer["message"]


@pytest.mark.parametrize("user", ["", SCHEDULER])
def test_nobody_else_allocates_devices_of_the_drivers(cluster: Cluster, user: str) -> None:
    for drivers in ((OURS,), (FOREIGN, OURS), (DRIVERS[0],)):
        code, answer = write(cluster, "new/status", status(allocation(*drivers), reserved("pod-1")), user)
        assert code == 403
        message = f"the claim new needs devices of {drivers[-1]}, which only topowise-scheduler allocates"
        assert message in answer["message"]
    kept(write(cluster, "new/status", status(allocation(FOREIGN, FOREIGN), reserved("pod-1")), user))


@pytest.mark.parametrize("version", EARLIER)
def test_an_earlier_version_of_the_api_is_no_way_around(cluster: Cluster, version: str) -> None:
    path = f"/apis/resource.k8s.io/{version}/namespaces/default/resourceclaims/new"
    for place, body, refusal in (
        (f"{path}/status", TAKEN, "only topowise-scheduler allocates"),
        (path, marked(), MARK),
    ):
        code, answer = call(cluster, "PATCH", place, body, user=SCHEDULER)
        assert code == 403
        assert refusal in answer["message"]
    token = cluster.token("topowise-scheduler")
    code, answer = call(cluster, "PATCH", f"{path}/status", TAKEN, token=token)
    assert code == 403
    assert _POD in answer["message"]


def test_admin_access_takes_no_device(cluster: Cluster) -> None:
    path = f"{GROUP}/namespaces/monitoring/resourceclaims"
    document = claim("watches")
    document["spec"]["devices"]["requests"][0]["exactly"] |= {"adminAccess": True}
    kept(cluster.call("POST", path, document))
    body = status(allocation(OURS, adminAccess=True), reserved("pod-1"))
    kept(call(cluster, "PATCH", f"{path}/watches/status", body, user=SCHEDULER))


def test_the_controller_of_claims_takes_back_and_deletes(cluster: Cluster) -> None:
    put(cluster, "ends")
    kept(serve(cluster, "ends", marked(), query=""))
    kept(serve(cluster, "ends/status", TAKEN, query=""))
    kept(call(cluster, "DELETE", f"{CLAIMS}/ends", query=""))
    ended = kept(cluster.call("GET", f"{CLAIMS}/ends"))
    ended["status"] = {}
    ended = kept(call(cluster, "PUT", f"{CLAIMS}/ends/status", ended, query="", user=CONTROLLER))
    ended["metadata"]["finalizers"] = []
    kept(call(cluster, "PUT", f"{CLAIMS}/ends", ended, query="", user=CONTROLLER))
    assert cluster.call("GET", f"{CLAIMS}/ends")[0] == 404


@pytest.mark.parametrize("user", ["", SCHEDULER, CONTROLLER])
def test_only_the_service_marks_claims(cluster: Cluster, user: str) -> None:
    path, at = f"/metadata/annotations/{key(MARK)}", "annotation topowise.io/allocated-for of claims"
    for name, body in (
        ("new", [op(path, "pod-1")]),
        ("ours", [op(path, "pod-2")]),
        ("ours", [op(path, verb="remove")]),
    ):
        code, answer = write(cluster, name, body, user)
        assert code == 403
        assert at in answer["message"]
    kept(write(cluster, "ours", [op("/metadata/finalizers/-", "example.com/theirs")], user))


def test_nobody_creates_a_claim_with_a_mark(cluster: Cluster) -> None:
    code, answer = call(cluster, "POST", CLAIMS, claim("forged", annotations={MARK: "pod-1"}))
    assert code == 403
    assert "only topowise-scheduler writes" in answer["message"]


WITH_CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "new"}]}
GROUPED = {"schedulingGroup": {"podGroupName": "a"}}
GATED = {
    "claim": ("asks", WITH_CLAIM, {}, True),
    "claim of a daemon": ("asks", WITH_CLAIM, {"ownerReferences": owner("DaemonSet")}, True),
    "claim of a scheduling group": ("asks", WITH_CLAIM | GROUPED, {}, True),
    "daemon": ("asks", {}, {"ownerReferences": owner("DaemonSet")}, False),
    "scheduling group": ("asks", GROUPED, {}, False),
    "bound": ("asks", WITH_CLAIM | {"nodeName": "metal-0"}, {}, False),
    "namespace that does not ask": ("default", WITH_CLAIM, {}, False),
    "kube-system": ("kube-system", WITH_CLAIM, {}, False),
    "own namespace": (NAMESPACE, WITH_CLAIM, {}, False),
}


@pytest.mark.parametrize(("namespace", "spec", "metadata", "expected"), GATED.values(), ids=GATED)
def test_every_pod_with_claims_gets_the_gate(
    cluster: Cluster, namespace: str, spec: Document, metadata: Document, expected: bool
) -> None:
    document = {"metadata": {"name": "p", **metadata}, "spec": {"containers": [{"name": "a", "image": "a"}], **spec}}
    pod = kept(call(cluster, "POST", f"/api/v1/namespaces/{namespace}/pods", document))
    assert ({"name": GATE} in pod["spec"].get("schedulingGates", [])) is expected


def device_objects(driver: str) -> Iterator[tuple[str, Document]]:
    """A slice with devices of a node, and a class for them."""
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "gpu-0"}, {"name": "gpu-1"}]
    yield "resourceslices", {"driver": driver, "nodeName": "n1", "pool": pool, "devices": devices}
    yield "deviceclasses", {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}


async def test_the_service_allocates_and_takes_back_by_its_own_code(cluster: Cluster, tmp_path: Path) -> None:
    service = ClaimService()
    service.add_node("n1", 0, 1)
    service.claims.put_claim(sized_claim(put(cluster, "own", finalizers=["example.com/theirs"])))
    record = service.put(claiming("p", "2", "own", **GATED_POD))
    option = service.ledger.gates.option(ClaimOption)
    assert option is not None
    service.claims.assume(record.uid, "n1", option.nodes.of(record, "n1").devices.allocations)
    access = cluster.kubeconfig("topowise-scheduler", tmp_path)
    async with Api(await credentials.load(str(access)), "test") as api:
        step = ClaimAllocation(api, option)
        assert (await step.prebind(record, "n1", lambda _: ""))[1] == ""
        written = cluster.call("GET", f"{CLAIMS}/own")[1]
        assert written["metadata"]["finalizers"] == ["example.com/theirs", FINALIZER]
        assert written["metadata"]["annotations"][MARK] == record.uid
        (result,) = written["status"]["allocation"]["devices"]["results"]
        assert (result["driver"], result["pool"], result["device"]) == (OURS, "n1", "gpu-0")
        assert [user["uid"] for user in written["status"]["reservedFor"]] == [record.uid]
        await step.unreserve(record, "n1")
        assert not cluster.call("GET", f"{CLAIMS}/own")[1]["status"]


def claiming_pod(cluster: Cluster, name: str, driver: str, *gates: Document) -> Document:
    """A new pod with a new claim of the same name."""
    document = claim(name)
    document["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = driver
    kept(cluster.call("POST", CLAIMS, document))
    container = {"name": "a", "image": "a", "resources": {"claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimName": name}]
    spec = {"containers": [container], "resourceClaims": claims, "schedulingGates": list(gates)}
    return kept(cluster.call("POST", PODS, {"metadata": {"name": name}, "spec": spec}))


def test_kube_scheduler_allocates_the_devices_of_other_drivers(cluster: Cluster, tmp_path: Path) -> None:
    """And binds a pod whose claim the service has allocated. A pod without the gate says what it lacks."""
    if controlplane.assets("kube-scheduler") is None:
        pytest.skip("no kube-scheduler in $KUBEBUILDER_ASSETS")
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "9"}
    ready = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    kept(cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}}))
    kept(call(cluster, "PATCH", "/api/v1/nodes/n1/status", {"status": ready}, query=""))
    for driver in (OURS, FOREIGN):
        for plural, spec in device_objects(driver):
            kept(cluster.call("POST", f"{GROUP}/{plural}", {"metadata": {"name": driver}, "spec": spec}))
    claiming_pod(cluster, "ungated", OURS)
    claiming_pod(cluster, "foreign", FOREIGN)
    uid = claiming_pod(cluster, "gated", OURS, {"name": GATE})["metadata"]["uid"]
    users = [{"resource": "pods", "name": "gated", "uid": uid}]
    kept(serve(cluster, "gated", marked(uid), query=""))
    kept(serve(cluster, "gated/status", status(allocation(OURS), users), query=""))
    kept(call(cluster, "PATCH", f"{PODS}/gated", {"spec": {"schedulingGates": None}}, query=""))

    def of(name: str) -> Document:
        return cluster.call("GET", f"{PODS}/{name}")[1]

    with controlplane.StockScheduler(cluster.plane, {}, tmp_path):
        refusal = "the claim ungated needs devices of gpu.example.com, which only topowise-scheduler allocates"
        eventually(lambda: refusal in str(of("ungated")["status"]), within=60)
        eventually(lambda: all("nodeName" in of(name)["spec"] for name in ("foreign", "gated")), within=60)
    assert "nodeName" not in of("ungated")["spec"]
    assert cluster.call("GET", f"{CLAIMS}/gated")[1]["status"]["reservedFor"] == users
