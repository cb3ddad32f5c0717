"""An embedded Kubernetes API server for tests, demos and development: in memory and on loopback only.

Fakes of the client library do not show what breaks a daemon in production: a watch that ends or goes silent, an event
window that has moved on, a conflict, a 429. So this is a server, spoken to over HTTP by the very code under test and by
stock `kubectl`; it behaves as kube-apiserver does, and `tests/contract` runs the same tests against both.
What only it can do is misbehave on demand (`levers`) and count what it was asked (`journal`).

    async with ApiServer() as server:
        server.install_crds(Path("charts/topowise/crds"))
        server.kubeconfig(tmp_path / "kubeconfig")
        server.levers.answer(429, path="*/binding", retry_after=1, count=2)

Known differences from a real cluster, on the lenient side: namespaces need not exist; no admission plug-ins beyond
pod defaults and PriorityClasses; no controllers except ownership garbage collection, which is immediate (other
controllers: `sandbox.controllers`); bookmarks come even where nothing has happened; built-in kinds are stored as sent
(defaults and validation only where placement depends on them); `v1` and `events.k8s.io/v1` events are stored apart, and
the latter are copied to `v1`; a list at a resourceVersion from the future is refused without waiting.
On the strict side: bodies in protobuf are 415 for kinds that are not in the table of `protobuf`, as `kubectl create`
sends them, but not for files; only custom resources have OpenAPI schemas for `kubectl explain`.
"""

from __future__ import annotations

from sandbox.apiserver.server import ApiServer

__all__ = ["ApiServer"]
