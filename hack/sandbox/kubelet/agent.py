"""The API server's side of an emulated kubelet: registers its Node, admits pods bound to it, reports their status."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec

from sandbox.kubelet import podresources
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.state_files import StateFiles
from topowise import pods
from topowise.errors import ApiError
from topowise.kube.api import MERGE_PATCH, Api
from topowise.kube.reflector import EventType, Reflector
from topowise.runtime.log import kv

log = logging.getLogger(__name__)


class Agent:
    """`directory` has `sys`, `proc` and `kubelet/config.yaml`; the socket and the state files come into `kubelet`."""

    def __init__(self, api: Api, name: str, directory: Path) -> None:
        self._api = api
        self._name = name
        self._kubelet_dir = directory / "kubelet"
        self._node = EmulatedNode(directory / "sys", directory / "proc", self._kubelet_dir / "config.yaml")
        self._files = StateFiles(self._kubelet_dir)
        self._events: asyncio.Queue[tuple[EventType, pods.Pod]] = asyncio.Queue()
        self._refused: set[str] = set()

    @property
    def socket(self) -> Path:
        """Where podresources is served."""
        return self._kubelet_dir / "pod-resources/kubelet.sock"

    async def run(self) -> None:
        """Until cancelled."""
        await self._register()
        self._checkpoint(admitted=True)
        server = await podresources.start(self.socket, self._node.holdings)
        query = {"fieldSelector": f"spec.nodeName={self._name}"}
        reflector = Reflector(self._api, "/api/v1/pods", pods.decode, self, query=query)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(reflector.run(), name=f"{self._name} watch")
                tasks.create_task(self._work(), name=f"{self._name} work")
        finally:
            await server.stop(None)

    def replace(self, items: list[pods.Pod]) -> None:
        """As Consumer: everything that is bound here."""
        for item in items:
            self._events.put_nowait(("ADDED", item))

    def apply(self, event: EventType, item: pods.Pod) -> None:
        """As Consumer: one change."""
        self._events.put_nowait((event, item))

    async def _work(self) -> None:
        while True:
            event, pod = await self._events.get()
            uid = pod.metadata.uid
            if event == "DELETED" or pod.is_terminal:
                self._refused.discard(uid)
                if self._node.remove(uid):
                    self._checkpoint(admitted=False)
            elif not self._node.runs(uid) and uid not in self._refused:
                await self._admit(pod)

    async def _admit(self, pod: pods.Pod) -> None:
        decision = self._node.admit(pod)
        if decision.admitted:
            self._checkpoint(admitted=True)
            status: dict[str, object] = {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [
                    {"name": container.name, "ready": True, "restartCount": 0, "image": "", "imageID": ""}
                    for container in pod.spec.containers or ()
                ],
            }
        else:
            self._refused.add(pod.metadata.uid)
            message = f"Pod was rejected: {decision.message}"
            status = {"phase": "Failed", "reason": decision.reason, "message": message}
        meta = pod.metadata
        log.info("Admission", extra=kv(node=self._name, pod=meta.name, admitted=decision.admitted, why=decision.reason))
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/status"
        try:
            body = msgspec.json.encode({"status": status})
            await self._api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        except ApiError as exc:
            # The pod may be gone already; its deletion is on its way to us.
            log.warning("Cannot report a pod's status", extra=kv(pod=meta.name, why=exc))

    def _checkpoint(self, *, admitted: bool) -> None:
        self._files.write(
            self._node.holdings(),
            cpu_policy=self._node.cpu_policy,
            memory_policy=self._node.memory_policy,
            admitted=admitted,
        )

    async def _register(self) -> None:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._name, "labels": {"kubernetes.io/hostname": self._name}},
            "status": {
                "capacity": self._node.capacity(),
                "allocatable": self._node.allocatable(),
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                "nodeInfo": {"kubeletVersion": "v1.36.2", "operatingSystem": "linux", "architecture": "amd64"},
            },
        }
        try:
            await self._api.request("POST", "/api/v1/nodes", body=msgspec.json.encode(node))
        except ApiError as exc:
            if exc.status != 409:
                raise
        path = f"/api/v1/nodes/{self._name}/status"
        body = msgspec.json.encode({"status": node["status"]})
        await self._api.request("PATCH", path, body=body, content_type=MERGE_PATCH)
