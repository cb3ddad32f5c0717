"""An emulated kubelet with all that an exporter process looks at: its Node, its socket, its state files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sandbox.kubelet import podresources, pods_api
from sandbox.kubelet.lifecycle import Change, Lifecycle
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.registration import register
from sandbox.kubelet.state_files import StateFiles
from topowise import pods
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector


class Agent:
    """`directory` has `sys`, `proc` and `kubelet/config.yaml`; the socket and the state files come into `kubelet`."""

    def __init__(self, api: Api, name: str, directory: Path) -> None:
        self._api = api
        self._name = name
        self._kubelet_dir = directory / "kubelet"
        config = self._kubelet_dir / "config.yaml"
        self._node = EmulatedNode.from_files(directory / "sys", directory / "proc", config)
        self._files = StateFiles(self._kubelet_dir)
        self._pods_api = pods_api.PodsApi(self._node.holdings)
        self._lifecycle = Lifecycle(api, name, self._node, self._checkpoint)

    @property
    def socket(self) -> Path:
        """Where podresources is served."""
        return self._kubelet_dir / "pod-resources/kubelet.sock"

    async def run(self) -> None:
        """Until cancelled."""
        await register(self._api, self._name, self._node)
        self._checkpoint(Change(admitted=True))
        server = await podresources.start(self.socket, self._node.holdings)
        await self._pods_api.start(self._kubelet_dir / "pods-api/pods-api.sock")
        query = {"fieldSelector": f"spec.nodeName={self._name}"}
        reflector = Reflector(self._api, "/api/v1/pods", pods.decode, self, query=query)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(reflector.run(), name=f"{self._name} watch")
                tasks.create_task(self._lifecycle.run(), name=f"{self._name} admissions")
        finally:
            await self._pods_api.stop()
            await server.stop(None)

    def replace(self, items: list[pods.Pod]) -> None:
        """As Consumer: everything that is bound here."""
        self._lifecycle.keep({item.metadata.uid for item in items})
        for item in items:
            self._lifecycle.put("ADDED", item)

    def apply(self, event: EventType, item: pods.Pod) -> None:
        """As Consumer: one change."""
        self._lifecycle.put(event, item)

    def _checkpoint(self, change: Change) -> None:
        self._files.write(
            self._node.holdings(),
            cpu_policy=self._node.cpu_policy,
            memory_policy=self._node.memory_policy,
            admitted=change.admitted,
        )
        self._pods_api.changed()
