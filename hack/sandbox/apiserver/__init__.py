"""An embedded Kubernetes API server for tests, demos and development: in memory and on loopback only.

Fakes of the client library do not show what breaks a daemon in production: a watch that ends or goes silent, an event
window that has moved on, a conflict, a 429. So this is a server, spoken to over HTTP by the very code under test and
by stock `kubectl`; in what the product uses of the API it behaves as kube-apiserver does, and `tests/contract` runs
the same tests against both. What only it can do is misbehave on demand (`levers`) and count what it was asked
(`journal`).

    async with ApiServer() as server:
        server.install_crds(Path("charts/topowise/crds"))
        server.kubeconfig(tmp_path / "kubeconfig")
        server.levers.answer(429, path="*/binding", retry_after=1, count=2)

Known differences from a real cluster: objects are stored as sent, without validation of names, values and schemas,
and with the defaults on which placement depends; namespaces need not exist; no admission plug-ins beyond
PriorityClasses; no controllers except ownership garbage collection, which is immediate (other controllers:
`sandbox.controllers`); bookmarks come even where nothing has happened; `v1` and `events.k8s.io/v1` events are stored
apart, and the latter are copied to `v1`; a list at a resourceVersion from the future is refused without waiting;
protobuf is not served, so that Helm, `kubectl create namespace` and `kubectl drain` need a real server.
tests/nightly/cluster and tests/e2e have a real server.
"""

from __future__ import annotations

from sandbox.apiserver.server import ApiServer

__all__ = ["ApiServer"]
