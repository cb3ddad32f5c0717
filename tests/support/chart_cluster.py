"""A client of a real API server for the tests of the chart: applies rendered objects, acts with an account's token."""

from __future__ import annotations

import contextlib
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sandbox import controlplane
from sandbox.apiserver import documents
from topowise.kube.api import JSON, MERGE_PATCH

Document = dict[str, Any]

NAMESPACE = "topowise-system"
JSON_PATCH = "application/json-patch+json"
PLURALS = {
    "Namespace": ("/api/v1", "namespaces"),
    "PriorityClass": ("/apis/scheduling.k8s.io/v1", "priorityclasses"),
    "ServiceAccount": ("/api/v1", "serviceaccounts"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "MutatingAdmissionPolicy": ("/apis/admissionregistration.k8s.io/v1", "mutatingadmissionpolicies"),
    "MutatingAdmissionPolicyBinding": ("/apis/admissionregistration.k8s.io/v1", "mutatingadmissionpolicybindings"),
    "NodeResourceTopology": ("/apis/topology.node.k8s.io/v1alpha2", "noderesourcetopologies"),
    "ValidatingAdmissionPolicy": ("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
    ),
}


class Cluster:
    """A client of the API server, as the administrator or with a token."""

    def __init__(self, plane: controlplane.ControlPlane) -> None:
        self.plane = plane
        self._context = ssl._create_unverified_context()

    def call(
        self,
        method: str,
        path: str,
        body: Document | None = None,
        *,
        token: str = "",
        content_type: str = "",
        exporter_of: str = "",
        user: str = "",
    ) -> tuple[int, Document]:
        """The status and the answer; a PATCH is a server-side apply unless `content_type` names another patch.
        `exporter_of`: as the exporter on this node; `user`: as this user."""
        usual = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token or self.plane.token}", "Content-Type": content_type or usual}
        if user:
            headers["Impersonate-User"] = user
        if exporter_of:
            headers["Impersonate-User"] = f"system:serviceaccount:{NAMESPACE}:topowise-exporter"
            headers["Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"] = exporter_of
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.plane.url + path, data, headers, method=method)
        handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._context)
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as exc:
            return exc.code, json.load(exc)

    def apply(self, document: Document, *, dry_run: bool = False) -> None:
        query = "fieldManager=chart&force=true&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        status, answer = self.call("PATCH", f"{path_of(document)}?{query}", document)
        assert status in (200, 201), f"{document['kind']} {document['metadata']['name']}: {answer.get('message')}"

    def kubeconfig(self, account: str, folder: Path) -> Path:
        """Returns a kubeconfig with a token of a service account."""
        return documents.write_kubeconfig(folder / account, self.plane.url, token=self.token(account), insecure=True)

    def token(self, account: str, pod: Document | None = None, seconds: int = 3600) -> str:
        """Returns a token of a service account; with a pod, a token that names the pod and its node."""
        spec: Document = {"expirationSeconds": seconds}
        if pod is not None:
            meta = pod["metadata"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
        status, answer = self.call("POST", path, body)
        assert status == 201, answer
        return str(answer["status"]["token"])


@contextlib.contextmanager
def installed(documents: Iterable[Document], *, apis: Sequence[str] = ()) -> Iterator[Cluster]:
    """An API server with rendered objects in it, and the namespace of the chart; `apis` are served as well."""
    assets = controlplane.assets()
    assert assets is not None
    order = {"Namespace": 0, "CustomResourceDefinition": 1}
    with controlplane.ControlPlane(assets, apis=apis) as plane:
        cluster = Cluster(plane)
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for document in sorted(documents, key=lambda document: order.get(document["kind"], 2)):
            cluster.apply(document)
        yield cluster


def path_of(document: Document) -> str:
    """Where an object lies."""
    kind, meta = document["kind"], document["metadata"]
    version = document["apiVersion"]
    root, plural = PLURALS.get(kind, (f"/apis/{version}" if "/" in version else f"/api/{version}", f"{kind.lower()}s"))
    place = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
    return f"{root}{place}/{plural}/{meta['name']}"


def eventually(check: Callable[[], Any], within: float = 20.0) -> Any:
    deadline = time.monotonic() + within
    while True:
        result = check()
        if result:
            return result
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.1)


def call(
    cluster: Cluster, method: str, path: str, body: Any = None, *, query: str = "?dryRun=All", **options: str
) -> tuple[int, Document]:
    """The answer to the administrator; a list is a JSON patch. Nothing is kept unless `query` is empty."""
    content_type = JSON if method != "PATCH" else JSON_PATCH if isinstance(body, list) else MERGE_PATCH
    return cluster.call(method, path + query, body, content_type=content_type, **options)


def owner(kind: str, *, controller: bool = True) -> list[Document]:
    return [{"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": f"uid-{kind}", "controller": controller}]


def op(path: str, value: Any = None, verb: str = "add") -> Document:
    return {"op": verb, "path": path, **({} if verb == "remove" else {"value": value})}


def key(name: str) -> str:
    """A key in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
