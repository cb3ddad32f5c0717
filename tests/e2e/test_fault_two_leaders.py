"""A leader suspended until its lease expires writes nothing afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from daemons import Daemon, Start, assert_eventually
from faults import Fault, FaultProxy, assert_said_once
from faults.site import LONG_S
from sandbox.apiserver import ApiServer
from scheduler_process import NRT, Listener
from scheduling import NODE_STATUS, WAITS, pod
from topowise.kube.api import MERGE_PATCH, Api
from topowise.placement import GATE
from topowise_scheduler.controllers.requeue import REQUEUED_ANNOTATION
from topowise_scheduler.ledger.nodes import STARTUP_TAINT

PODS: Final = "/api/v1/namespaces/default/pods"
LEASES: Final = "leases.coordination.k8s.io"
DUTIES: Final[dict[str, Any]] = {
    "requeue": {"enabled": True},
    "startupTaint": {"enabled": True},
    "refusedPods": {"delete": True},
    "waitingPods": {"tell": True},
    "preemptor": {"enabled": True},
    "placement": {"enabled": True},
}
NO_DUTIES: Final[dict[str, Any]] = {"requeue": {"enabled": False}}
OWNER: Final = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
# The time until a lease expires and a candidate retries, on a busy machine.
TAKEN_OVER_S: Final = 60.0


@dataclass
class Replica:
    """A service that competes for the lease, behind its own proxy."""

    name: str
    proxy: FaultProxy
    daemon: Daemon
    listener: Listener

    def leads(self, server: ApiServer) -> bool:
        """Whether the Lease names the replica."""
        holders = [lease["spec"].get("holderIdentity") for lease in server.store.objects(LEASES)]
        return any(holder and holder in line for holder in holders for line in self.daemon.lines("Acquired the lease"))

    def writes(self, since: float) -> list[tuple[str, str]]:
        """Method and path of each write since a monotonic time, without writes of the Lease."""
        requests = [request for request in self.proxy.asked if request.at >= since and request.method != "GET"]
        return [(request.method, request.path) for request in requests if "/leases" not in request.path]


@asynccontextmanager
async def replica(
    name: str, server: ApiServer, start: Start, directory: Path, duties: dict[str, Any]
) -> AsyncIterator[Replica]:
    async with FaultProxy(server.url) as proxy:
        kubeconfig = proxy.kubeconfig(directory / f"{name}.kubeconfig")
        listener = Listener(kubeconfig, leaderElection={"enabled": True}, **duties)
        daemon = await start("topowise_scheduler", "serve", config=listener.config)
        await assert_eventually(listener.is_ready, within=LONG_S)
        try:
            yield Replica(name, proxy, daemon, listener)
        finally:
            # A suspended process does not handle SIGTERM.
            with contextlib.suppress(ProcessLookupError):
                daemon.process.send_signal(signal.SIGCONT)


async def create_work(server: ApiServer, api: Api) -> None:
    """Creates work for every controller of a leader."""
    cpu = {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "8"}
    for name in ("tainted", "free"):
        taints = [{"key": STARTUP_TAINT, "effect": "NoSchedule"}] if name == "tainted" else []
        server.create("nodes", {"metadata": {"name": name}, "spec": {"taints": taints}, "status": NODE_STATUS})
        zones = [{"name": "node-0", "type": "Node", "resources": [cpu]}]
        policy = {"name": "topologyManagerPolicy", "value": "single-numa-node"}
        server.create(NRT, {"metadata": {"name": name}, "attributes": [policy], "zones": zones})
    refused = pod("refused", "2", node="free")
    refused["metadata"]["ownerReferences"] = [OWNER]
    gated = [pod(f"gated-{number}", "2", schedulingGates=[{"name": GATE}]) for number in range(4)]
    for document in (pod("waiting", "2"), refused, *gated):
        server.create("pods", document)
    failed = {"phase": "Failed", "reason": "TopologyAffinityError", "message": "Resources cannot be allocated"}
    for name, status in (("waiting", {"conditions": WAITS}), ("refused", failed)):
        body = json.dumps({"status": status}).encode()
        await api.request("PATCH", f"{PODS}/{name}/status", body=body, content_type=MERGE_PATCH)


def is_work_done(server: ApiServer) -> bool:
    pods = {pod["metadata"]["name"]: pod for pod in server.store.objects("pods")}
    tainted = next(node for node in server.store.objects("nodes") if node["metadata"]["name"] == "tainted")
    return (
        not tainted["spec"].get("taints")
        and "refused" not in pods
        and REQUEUED_ANNOTATION in (pods["waiting"]["metadata"].get("annotations") or {})
    )


def refuse_work(proxy: FaultProxy) -> None:
    """Makes the leader's writes fail, so that the leader retries after its back-off."""
    unavailable = (503, {"Content-Type": "application/json"}, b'{"kind":"Status","code":503}')
    for method, path in (("PATCH", "*"), ("DELETE", "*"), ("POST", "*/events"), ("POST", "*/eviction")):
        proxy.spoil(Fault(method=method, path=path, answer=unavailable))


async def test_a_leader_that_was_stopped_until_its_lease_ended_writes_nothing(
    server: ApiServer, api: Api, start: Start, tmp_path: Path
) -> None:
    async with replica("a", server, start, tmp_path, DUTIES) as stopped:
        await assert_eventually(lambda: stopped.leads(server), within=LONG_S)
        async with replica("b", server, start, tmp_path, NO_DUTIES) as successor:
            refuse_work(stopped.proxy)
            await create_work(server, api)
            await assert_eventually(lambda: stopped.daemon.lines("Cannot remove a start-up taint"), within=LONG_S)
            await assert_eventually(lambda: stopped.daemon.lines("Cannot clear up a refused pod"), within=LONG_S)
            # The leader first reads the answer that arrives during its suspension.
            fault = stopped.proxy.spoil(Fault(method="GET", path="/api/v1/nodes/tainted", swallow=True))
            await assert_eventually(lambda: fault.hits, within=LONG_S)
            os.kill(stopped.daemon.process.pid, signal.SIGSTOP)
            stopped.proxy.mend()
            await assert_eventually(lambda: successor.leads(server), within=TAKEN_OVER_S)
            lines = len(stopped.daemon.log.splitlines())
            resumed = time.monotonic()
            os.kill(stopped.daemon.process.pid, signal.SIGCONT)
            await assert_eventually(lambda: stopped.daemon.lines("Lost the lease"), within=LONG_S)
            await asyncio.sleep(3)
            assert stopped.writes(resumed) == []
            assert successor.leads(server)
            assert not is_work_done(server)
            assert_said_once(stopped.daemon, lines, at_most=2)
            # The candidate acquires the lease again after the successor releases it, and does the remaining work.
            assert await successor.daemon.stop() == 0
            await assert_eventually(lambda: is_work_done(server), within=LONG_S)
        assert await stopped.listener.is_ready()
        assert len(stopped.daemon.lines("Lost the lease")) == 1
